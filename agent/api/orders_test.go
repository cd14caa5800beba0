package api

import (
	"bufio"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// answer is what a done order says, its fields by name.
type answer map[string]string

// told is one answer, done or refused.
type told struct {
	line         string
	status       int // 0 for one that is done
	code, detail string
}

func (r told) done(t testing.TB) answer {
	t.Helper()
	words := strings.Fields(r.line)
	if len(words) == 0 || words[0] != "done" {
		t.Fatalf("%+v", r)
	}
	fields := answer{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		text, err := url.PathUnescape(value)
		must(err)
		fields[name] = text
	}
	return fields
}

// giver is the worker's end of one connection for orders.
type giver struct {
	*agent
	net.Conn
	answers *bufio.Reader
}

func (a *agent) giver() *giver {
	a.Helper()
	conn, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: worker}}).Dial("tcp4", a.orders)
	must(err)
	a.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	return &giver{a, conn, bufio.NewReader(conn)}
}

func (g *giver) say(text string) {
	g.Helper()
	if _, err := io.WriteString(g.Conn, text); err != nil {
		g.Fatal(err)
	}
}

func (g *giver) hear() (r told) {
	g.Helper()
	line, err := g.answers.ReadString('\n')
	if err != nil {
		g.Fatal(err)
	}
	r.line = strings.TrimSuffix(line, "\n")
	if words := strings.Split(r.line, " "); words[0] == "refused" {
		r.status, err = strconv.Atoi(words[1])
		must(err)
		r.code = words[2]
		r.detail, err = url.PathUnescape(words[3])
		must(err)
	}
	return r
}

// ended checks that the agent says no more and hangs up.
func (g *giver) ended() {
	g.Helper()
	if rest, err := io.ReadAll(g.answers); len(rest) != 0 || os.IsTimeout(err) {
		g.Fatalf("%q %v", rest, err)
	}
}

// order gives one over a connection of its own. As the worker does, it first ends
// those that the agent may end.
func (a *agent) order(line string) told {
	a.Helper()
	a.client.CloseIdleConnections()
	g := a.giver()
	defer g.Close()
	g.say(line + "\n")
	return g.hear()
}

func TestOrdersShareAConnection(t *testing.T) {
	a := newAgent(t)
	g := a.giver()
	for i := 0; i < 3; i++ {
		g.say("freeze reason=pause")
		g.say(" hook_timeout_ms=0\n") // as a network may cut it
		g.hear().done(t)
		g.say("thaw entropy=AAAA\n")
		if r := g.hear(); r.status != 422 {
			t.Fatal(r)
		}
		g.say("thaw\n")
		g.hear().done(t)
	}
}

func TestWhatIsNoOrderEndsTheConnection(t *testing.T) {
	a := newAgent(t)
	for line, code := range map[string]string{
		"\n": "bad_order", "GET / HTTP/1.1\r\n": "bad_order", "melt\n": "bad_order", "freeze\n": "invalid_argument",
		strings.Repeat("x", 4096): "bad_order",
	} {
		g := a.giver()
		g.say(line)
		if r := g.hear(); r.status == 0 || r.code != code {
			t.Errorf("%q: %+v", line, r)
		}
		g.ended()
	}
	g := a.giver()
	g.say("thaw\nthaw\n")
	g.ended()
}

// Where memory is to be saved, no connection of the worker's is in the copy.
func TestConnectionsEndBeforeACopy(t *testing.T) {
	a := newAgent(t)
	for _, reason := range []string{"suspend", "snapshot", "fork"} {
		request, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: worker}}).Dial("tcp4", strings.TrimPrefix(a.internal, "http://"))
		must(err)
		defer request.Close()
		request.SetDeadline(time.Now().Add(30 * time.Second))
		http := bufio.NewReader(request)
		io.WriteString(request, "GET /health HTTP/1.1\r\nHost: agent\r\n\r\n")
		if line, err := http.ReadString('\n'); err != nil || line != "HTTP/1.1 200 OK\r\n" {
			t.Fatal(line, err)
		}
		// An answer is sent before its connection is idle: the order is given again until it was.
		a.eventually("the request's connection ends", func() bool {
			g := a.giver()
			g.say("freeze reason=" + reason + "\n")
			g.hear().done(t)
			g.ended()
			request.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, err := io.Copy(io.Discard, http)
			return !os.IsTimeout(err)
		})
		a.thaw()
	}
}

func TestStrangersGiveNoOrders(t *testing.T) {
	a := newAgent(t)
	conn, err := net.Dial("tcp4", a.orders)
	must(err)
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	io.WriteString(conn, "thaw\n")
	if said, err := io.ReadAll(conn); len(said) != 0 || os.IsTimeout(err) {
		t.Fatalf("%q %v", said, err)
	}
	if r := a.order("thaw"); r.status != 0 {
		t.Fatal(r)
	}
}

// Whoever gave the order and leaves, or goes on talking, wants nothing of it any
// more: its hook ends, and programs go on.
func TestAnOrderEndsWithWhoGaveIt(t *testing.T) {
	a := newAgent(t)
	pids := filepath.Join(t.TempDir(), "pid")
	a.script("pre-suspend", "#!/bin/sh\necho $$ > "+pids+".new; mv "+pids+".new "+pids+"; exec sleep 100")
	for name, leave := range map[string]func(*giver){
		"leaves": func(g *giver) { g.Close() },
		"talks":  func(g *giver) { g.say("thaw\n"); g.ended() },
	} {
		os.Remove(pids)
		g := a.giver()
		g.say("freeze reason=suspend hook_timeout_ms=60000\n")
		a.eventually("the hook runs", func() bool { _, err := os.Stat(pids); return err == nil })
		text, err := os.ReadFile(pids)
		must(err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		must(err)
		leave(g)
		a.eventually(name+": the hook is gone", func() bool { return !alive(pid) })
		if a.do("GET", a.internal+"/health", nil).object()["frozen"] != false {
			t.Error(name, "froze all the same")
		}
	}
}

func TestOrdersAreNoConnectionsFromOutside(t *testing.T) {
	a := newAgent(t)
	g := a.giver()
	g.say("thaw\n")
	g.hear().done(t)
	if open := a.activity()["open_connections"]; open != 0.0 {
		t.Fatal(open)
	}
}
