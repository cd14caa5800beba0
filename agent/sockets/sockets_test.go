package sockets

import (
	"net"
	"testing"
)

func accepted(t *testing.T, network, address string) (l net.Listener, port int) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

// dial connects from an address that nobody else on this machine uses.
func dial(t *testing.T, l net.Listener, port int, from string) (client, server net.Conn) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.Dial("tcp4", (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func TestInboundCountsWhatCameFromThePeer(t *testing.T) {
	const peer = "127.49.98.1"
	v4, port4 := accepted(t, "tcp4", "127.0.0.1:0")
	both, portBoth := accepted(t, "tcp", ":0") // sees IPv4 as mapped addresses
	count := func(want int, own ...int) {
		t.Helper()
		n, err := Inbound(net.ParseIP(peer), own...)
		if err != nil || n != want {
			t.Fatalf("%d connections, want %d (%v)", n, want, err)
		}
	}
	count(0)
	first, _ := dial(t, v4, port4, peer)
	count(1)
	dial(t, v4, port4, "127.49.98.2")
	count(1)
	dial(t, both, portBoth, peer)
	count(2)
	count(1, port4)
	count(0, port4, portBoth)
	first.Close() // its other end is not closed, but nobody is there
	count(1)
}

func BenchmarkInbound(b *testing.B) {
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if _, err := Inbound(net.IPv4(169, 254, 0, 22), 49983); err != nil {
			b.Fatal(err)
		}
	}
}
