package api

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"space/agent/command"
	"space/agent/freezer"
	"space/agent/hook"
	"space/agent/identity"
	"space/agent/quiesce"
)

// raw sends a request line as it is, which http.Client would tidy up.
func (a *agent) raw(address, request string) reply {
	a.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(address, "http://"))
	must(err)
	defer conn.Close()
	fmt.Fprintf(conn, "%s\r\nHost: x\r\nConnection: close\r\n\r\n", request)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		a.Fatalf("%s: %v", request, err)
	}
	defer response.Body.Close()
	body := make([]byte, 4096)
	n, _ := response.Body.Read(body)
	return reply{response.StatusCode, response.Header, body[:n]}
}

func TestNothingBeforeInit(t *testing.T) {
	a := bareAgent(t)
	if r := a.do("GET", "/v1/health", nil); r.status != 200 || r.object()["sandbox_id"] != nil || r.object()["version"] != "test" {
		t.Fatal(r)
	}
	for _, request := range [][2]string{{"GET", "/v1/commands"}, {"POST", "/v1/commands"}, {"GET", "/v1/files?path=/etc/passwd"}, {"POST", "/v1/health"}, {"GET", "/v1/nowhere"}} {
		a.refused(a.do(request[0], request[1], nil), 503, "not_initialised")
	}
	a.init(nil)
	if r := a.do("GET", "/v1/health", nil); r.object()["sandbox_id"] != "sbx_test" || r.object()["status"] != "ok" {
		t.Fatal(r)
	}
	if r := a.do("GET", "/v1/commands", nil); r.status != 200 {
		t.Fatal(r)
	}
}

func TestAccessToken(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"access_token": "secret"})
	a.token = ""
	for _, wrong := range []string{"", "secre", "secret ", "secret2", "Secret"} {
		for _, request := range [][2]string{{"GET", "/v1/commands"}, {"POST", "/v1/commands"}, {"PUT", "/v1/files?path=/tmp/x"},
			{"GET", "/v1/nowhere"}, {"DELETE", "/v1/health"}, {"HEAD", "/v1/commands"}} {
			r := a.do(request[0], request[1], nil, "X-Access-Token", wrong)
			if wrong == "secret " { // HTTP strips the space: it is the token
				continue
			}
			if request[0] == "HEAD" {
				if r.status != 401 {
					t.Fatal(r)
				}
				continue
			}
			a.refused(r, 401, "unauthorized")
		}
	}
	if r := a.do("GET", "/health", nil); r.status != 204 || len(r.body) != 0 {
		t.Fatal(r)
	}
	if r := a.do("GET", "/v1/commands", nil, "X-Access-Token", "secret"); r.status != 200 {
		t.Fatal(r)
	}
	// A new identity replaces the token and the environment at once.
	a.init(map[string]any{"access_token": "other", "env": map[string]string{"NEW": "1"}})
	a.refused(a.do("GET", "/v1/commands", nil, "X-Access-Token", "secret"), 401, "unauthorized")
	if r := a.run(sh("echo [$SANDBOX][$NEW]")); r.data != "[][1]\n" {
		t.Fatal(r.data)
	}
}

func TestPathsAreTakenAsTheyAre(t *testing.T) {
	a := newAgent(t)
	for _, path := range []string{"/init", "/%69nit", "//init", "/./init", "/v1/commands/../init", "/activity", "/shutdown", "//commands",
		"/v1/%63ommands", "/commands", "/v1", "/v1/", "/v1/commands/", "/v1/commands//output", "/Commands", "/", "//", "/health/", "/v1/health/", "/health%2f", "/..//health", "/v1/files/", "/v1/files/stat/",
		"/v1/commands/%2e%2e/output", "/v1/commands/a/b/output", "/v1/commands;x", "/%2fcommands", "http://x//init", "http://x:49982/init"} {
		for _, method := range []string{"GET", "POST"} {
			if r := a.raw(a.url, method+" "+path+" HTTP/1.1"); r.status != 404 {
				t.Errorf("%s %s: %v", method, path, r)
			}
		}
	}
	for _, line := range []string{"GET http://x/v1/commands HTTP/1.1", "GET /v1/commands?%zz HTTP/1.1"} {
		if r := a.raw(a.url, line); r.status != 200 {
			t.Errorf("%s: %v", line, r)
		}
	}
	if r := a.raw(a.url, "CONNECT x:1 HTTP/1.1"); r.status != 404 {
		t.Error(r)
	}
	r := a.do("PATCH", "/v1/commands", nil)
	a.refused(r, 405, "method_not_allowed")
	if r.header.Get("Allow") != "GET, POST" {
		t.Error(r.header)
	}
	if r := a.do("GET", "/v1/commands", nil, "X-Big", strings.Repeat("x", 128<<10)); r.status != 431 {
		t.Error(r.status)
	}
}

func TestInitValidates(t *testing.T) {
	a := bareAgent(t)
	good := map[string]any{"sandbox_id": "s", "hostname": "h", "time_unix_ns": 1, "entropy": seed}
	for field, bad := range map[string][]any{
		"sandbox_id":   {"", nil, 5},
		"hostname":     {"", "a b", "-a", "a\n", strings.Repeat("a", 65), nil},
		"time_unix_ns": {0, -1, "x", nil},
		"entropy":      {"", "AAAA", nil},
		"env":          {map[string]string{"=": ""}, map[string]string{"A": "\x00"}},
	} {
		for _, value := range bad {
			body := map[string]any{}
			for k, v := range good {
				body[k] = v
			}
			body[field] = value
			if detail := a.refused(a.do("POST", a.internal+"/init", body), 422, "invalid_argument"); !strings.Contains(detail, field) {
				t.Errorf("%s=%v: %s", field, value, detail)
			}
		}
	}
	a.refused(a.do("POST", a.internal+"/init", "{"), 400, "bad_request")
	a.refused(a.do("GET", "/v1/commands", nil), 503, "not_initialised")
	r := a.do("POST", a.internal+"/init", good)
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if r.object()["version"] != "test" || r.object()["boot_id"] != strings.TrimSpace(string(boot)) || len(r.object()["warnings"].([]any)) != 0 {
		t.Fatal(r)
	}
	a.refused(a.do("GET", a.internal+"/v1/commands", nil), 404, "not_found")
	a.refused(a.do("GET", a.internal+"/init", nil), 405, "method_not_allowed")
}

// internalFor is an agent's internal handler for one peer.
func internalFor(peer string, shutdown func()) *Internal {
	id := identity.New(identity.Machine{})
	table := command.NewTable(testReaper, &freezer.Group{}, id.Env)
	hooks := hook.New(table, "/nonexistent")
	return NewInternal(NewPublic("test", id, table), quiesce.New(&freezer.Group{}, nil, hooks), hooks, net.ParseIP(peer), shutdown)
}

func TestInternalListenerKnowsItsPeer(t *testing.T) {
	l := listen(t)
	defer l.Close()
	go internalFor("169.254.0.22", nil).Serve(l)
	for i := 0; i < 3; i++ {
		if r, err := http.Get("http://" + l.Addr().String() + "/health"); err == nil {
			t.Fatalf("a stranger was answered: %d", r.StatusCode)
		}
	}
	allowed := listen(t)
	defer allowed.Close()
	go internalFor("127.0.0.2", nil).Serve(allowed)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.2")}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	r, err := client.Get("http://" + allowed.Addr().String() + "/health")
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	r.Body.Close()
}

func TestShutdownIsAnsweredFirst(t *testing.T) {
	called := make(chan struct{})
	l := listen(t)
	defer l.Close()
	go internalFor("127.0.0.1", func() { close(called) }).Serve(l)
	r, err := http.Post("http://"+l.Addr().String()+"/shutdown", "", nil)
	if err != nil || r.StatusCode != 202 {
		t.Fatal(r, err)
	}
	r.Body.Close()
	<-called
}
