"""Floods that one guest sends, as programs for it. Each ends by itself and shows what it did."""

HELLOS = """
import time
to, done, alerts, refused, waiting = address_of("allowed.test"), 0, 0, 0, []
def finish(s):
    global alerts
    s.settimeout(10)
    try: alerts += s.recv(7)[:1] == b"\\x15"
    except OSError: pass
    s.close()
begin, stems = b"-" * 12, []
for suffix in (".wild.allowed.test", ".test"): stems.append(client_hello(begin.decode() + suffix))
while done < SIZE and refused < ENOUGH:
    done += 1
    try:
        s = socket.socket()
        s.settimeout(5)
        s.connect((to, 443))
        s.sendall(stems[done % 2].replace(begin, os.urandom(6).hex().encode()))
    except ConnectionRefusedError:
        refused += 1
        continue
    except OSError:
        done -= 1
        time.sleep(0.02)
        continue
    waiting.append(s)
    if len(waiting) > 60: finish(waiting.pop(0))
for s in waiting: finish(s)
show([done, alerts, refused])
"""
"""TLS handshakes with names made up one by one, half of them under an allowed wildcard; some may not even begin.

It ends after SIZE attempts, or ENOUGH that were refused before they began.
"""

STREAMS = """
import time
def get(stream): return h2_headers(stream, [(":method", "GET"), (":scheme", "https"), (":authority", "allowed.test"),
                                            (":path", "/public/slow")])
kept, left = [], SIZE
while left > 0:
    s = connect("allowed.test", alpn=["h2"])
    s.sendall(H2_START + b"".join(get(1 + 2 * n) for n in range(min(100, left))))
    kept.append(s)
    left -= 100
time.sleep(5)
show(len(kept))
"""
"""Requests whose answers never end, a hundred on each connection, held for some seconds."""

SYNS = """
show(frames(tcp(f"198.18.{n % 4}.{n % 250 + 1}", 443, sport=1024 + n % 60000) for n in range(SIZE)))
"""
"""Openings of connections that are never gone on with."""

HALF_OPEN = """
import time
to, kept = address_of("allowed.test"), []
for n in range(SIZE):
    s = socket.socket(); s.settimeout(2)
    try:
        s.connect((to, 443 if n % 2 else 80))
        s.sendall(client_hello("allowed.test") if n % 2 else b"GET /public/x HTTP/1.1\\r\\nHost: allo")
    except OSError: time.sleep(0.02)
    kept.append(s)
time.sleep(5)
show(len(kept))
"""
"""Half a handshake or half a header, held for some seconds."""

WATCH = """
import time
while True:
    began = time.perf_counter()
    answer = fetch("allowed.test", "/public/meanwhile")
    print(json.dumps([answer.get("status"), (time.perf_counter() - began) * 1000]), flush=True)
"""
"""What the neighbour does meanwhile: one request after the other, each on a connection of its own."""
