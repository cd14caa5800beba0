package api

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestPTY(t *testing.T) {
	a := newAgent(t)
	body := map[string]any{"args": []string{"/bin/sh", "-c", `test -t 0 && test -t 1 && test -t 2 && stty size; echo $TERM; read x; stty size; read x; cat; echo bye`},
		"pty": map[string]int{"cols": 100, "rows": 30}}
	r := a.start(body)
	seen := ""
	expect := func(text string) {
		t.Helper()
		for !strings.Contains(seen, text) {
			l, ok := r.next()
			if !ok || l.Type != "pty" {
				t.Fatalf("expected %q, have %q, got %+v", text, seen, l)
			}
			seen += string(l.Data)
		}
		seen = seen[strings.Index(seen, text)+len(text):]
	}
	stdin := func(text, query string) {
		t.Helper()
		if answer := a.do("POST", "/v1/commands/"+r.id+"/stdin"+query, text); answer.status != 204 {
			t.Fatal(answer)
		}
	}
	expect("30 100\r\nxterm-256color\r\n")
	if answer := a.do("POST", "/v1/commands/"+r.id+"/resize", map[string]int{"cols": 132, "rows": 50}); answer.status != 204 {
		t.Fatal(answer)
	}
	a.refused(a.do("POST", "/v1/commands/"+r.id+"/resize", map[string]int{"cols": 0, "rows": 50}), 422, "invalid_argument")
	a.refused(a.do("POST", "/v1/commands/"+r.id+"/resize", map[string]int{"cols": 65536, "rows": 50}), 422, "invalid_argument")
	stdin("\n", "")
	expect("50 132\r\n")
	stdin("\n", "")
	stdin("half a line", "?eof=true") // cat gets the half, then the end
	expect("half a line")
	expect("bye\r\n")
	for {
		l, ok := r.next()
		if !ok {
			t.Fatal("no exit")
		}
		if l.Type == "exit" {
			break
		}
	}
	a.refused(a.do("POST", "/v1/commands/"+r.id+"/resize", map[string]int{"cols": 1, "rows": 1}), 409, "command_finished")
	a.refused(a.do("POST", "/v1/commands/"+r.id+"/stdin", "x"), 409, "stdin_closed")
	plain := a.start(map[string]any{"args": []string{"sleep", "100"}})
	a.refused(a.do("POST", "/v1/commands/"+plain.id+"/resize", map[string]int{"cols": 1, "rows": 1}), 409, "not_a_pty")
}

func TestPTYInterrupt(t *testing.T) {
	a := newAgent(t)
	for _, how := range []string{"key", "signal"} {
		// An interactive shell puts sleep into a group of its own, in the foreground.
		r := a.start(map[string]any{"args": []string{"/bin/bash", "--norc", "-i"}, "pty": map[string]int{"cols": 80, "rows": 24}})
		a.do("POST", "/v1/commands/"+r.id+"/stdin", "PS1=; sleep 100; echo sta''tus $?; exit 5\n")
		time.Sleep(300 * time.Millisecond)
		if how == "key" {
			a.do("POST", "/v1/commands/"+r.id+"/stdin", "\x03")
		} else {
			a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": "SIGINT"})
		}
		a.do("POST", "/v1/commands/"+r.id+"/stdin", "echo ali''ve; exit 6\n")
		res := r.rest(0)
		if res.code() != 6 || !strings.Contains(res.data, "alive") {
			t.Fatalf("%s: %q %+v", how, res.data, res.exit)
		}
	}
}

func TestStdin(t *testing.T) {
	a := newAgent(t)
	r := a.start(map[string]any{"args": []string{"cat"}, "stdin": true})
	url := "/v1/commands/" + r.id + "/stdin"
	if answer := a.do("POST", url, "one "); answer.status != 204 {
		t.Fatal(answer)
	}
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB: more than any pipe
	if answer := a.do("POST", url+"?eof=true", big); answer.status != 204 {
		t.Fatal(answer)
	}
	if res := r.rest(0); res.data != "one "+big || res.code() != 0 {
		t.Fatalf("%d bytes, %+v", len(res.data), res.exit)
	}
	a.refused(a.do("POST", url, "more"), 409, "stdin_closed")

	open := a.start(with(sh("exec cat >/dev/null"), "stdin", true))
	a.do("POST", "/v1/commands/"+open.id+"/stdin?eof=true", nil)
	open.rest(0)

	none := a.start(sh("cat; echo end"))
	a.refused(a.do("POST", "/v1/commands/"+none.id+"/stdin", "x"), 409, "stdin_closed")
	if res := none.rest(0); res.data != "end\n" {
		t.Fatalf("%q", res.data)
	}
	deaf := a.start(with(sh("exec <&-; echo closed; sleep 100"), "stdin", true))
	deaf.next()
	a.refused(a.do("POST", "/v1/commands/"+deaf.id+"/stdin", "x"), 409, "stdin_closed")
}

// endless is a body without an end that counts what was taken of it.
type endless struct {
	mu    sync.Mutex
	taken int64
}

func (e *endless) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.taken += int64(len(p))
	return len(p), nil
}

func (e *endless) count() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.taken
}

func TestStdinBackPressure(t *testing.T) {
	a := newAgent(t)
	r := a.start(map[string]any{"args": []string{"sleep", "100"}, "stdin": true})
	url := a.url + "/v1/commands/" + r.id + "/stdin"
	post := func(ctx context.Context, body io.Reader) chan error {
		done := make(chan error, 1)
		request, _ := http.NewRequestWithContext(ctx, "POST", url, body)
		go func() {
			response, err := http.DefaultTransport.RoundTrip(request)
			if err == nil {
				response.Body.Close()
				err = fmt.Errorf("status %d", response.StatusCode)
			}
			done <- err
		}()
		return done
	}
	body := &endless{}
	ctx, cancel := context.WithCancel(context.Background())
	blocked := post(ctx, body)
	var before int64 = -1
	a.eventually("the request is held up", func() bool {
		time.Sleep(100 * time.Millisecond)
		now := body.count()
		held := now > 0 && now == before
		before = now
		return held
	})
	if before > 32<<20 {
		t.Fatalf("%d bytes were taken for a process that reads none", before)
	}
	// Everything else goes on, also another command's stdin.
	other := a.start(map[string]any{"args": []string{"cat"}, "stdin": true})
	a.do("POST", "/v1/commands/"+other.id+"/stdin?eof=true", "fine")
	if res := other.rest(0); res.data != "fine" {
		t.Fatalf("%q", res.data)
	}
	// A second writer waits its turn, and is told when there is none to come.
	second := post(context.Background(), strings.NewReader("x"))
	select {
	case err := <-second:
		t.Fatalf("the second writer did not wait: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	cancel()
	<-blocked
	a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": "KILL"})
	if err := <-second; err == nil || err.Error() != "status 409" {
		t.Fatal(err)
	}
	if res := r.rest(0); *res.exit.Signal != "SIGKILL" {
		t.Fatalf("%+v", res.exit)
	}
}

// A client that vanishes while its bytes wait must give up its turn: the server
// itself would only notice when it reads on.
func TestStdinOfAVanishedClient(t *testing.T) {
	a := newAgent(t)
	fifo := filepath.Join(t.TempDir(), "go")
	r := a.start(with(sh("mkfifo "+fifo+"; read x < "+fifo+"; wc -c"), "stdin", true, "user", "root"))
	conn, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	must(err)
	// 80 KiB arrive, of which the pipe takes 64; more are promised.
	fmt.Fprintf(conn, "POST /v1/commands/%s/stdin HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n%s", r.id, strings.Repeat("x", 80<<10))
	time.Sleep(100 * time.Millisecond)
	conn.Close()
	second := make(chan reply, 1)
	go func() { second <- a.do("POST", "/v1/commands/"+r.id+"/stdin?eof=true", "second") }()
	time.Sleep(time.Second) // the agent looks four times as often
	must(os.WriteFile(fifo, []byte("go\n"), 0))
	if answer := <-second; answer.status != 204 {
		t.Fatal(answer)
	}
	res := r.rest(0)
	if got, err := strconv.Atoi(strings.TrimSpace(res.data)); err != nil || got < 60<<10 || got > 64<<10+len("second") {
		t.Fatalf("%q: what was waiting to be written went on after its client", res.data)
	}
}
