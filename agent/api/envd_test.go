package api

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"space/agent/defaults"
)

// call makes a unary call; as is the user, "" for none.
func (a *agent) call(as, method string, q any, header ...string) reply {
	a.Helper()
	if as != "" {
		header = append(header, "Authorization", basic(as))
	}
	return a.do("POST", "/"+method, q, append(header, "Content-Type", "application/json")...)
}

func basic(user string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

// failed checks that a call failed with a code and returns its message.
func (a *agent) failed(r reply, status int, code string) string {
	a.Helper()
	if r.status != status || r.object()["code"] != code {
		a.Fatalf("want %d %s, got %v", status, code, r)
	}
	return r.object()["message"].(string)
}

// rejected checks an error of a plain request and returns its message.
func (a *agent) rejected(r reply, status int) string {
	a.Helper()
	if r.status != status || r.header.Get("Content-Type") != "application/json" || r.object()["code"] != float64(status) {
		a.Fatalf("want %d, got %v (%s)", status, r, r.header.Get("Content-Type"))
	}
	return r.object()["message"].(string)
}

func framed(messages ...any) string {
	var out strings.Builder
	for _, message := range messages {
		data, err := json.Marshal(message)
		must(err)
		must(binary.Write(&out, binary.BigEndian, struct {
			Flags byte
			Size  uint32
		}{0, uint32(len(data))}))
		out.Write(data)
	}
	return out.String()
}

// tail is a stream's rest.
type tail struct {
	a    *agent
	body io.ReadCloser
	pid  int
}

// process is what a process's stream gave.
type process struct {
	of   map[string]string // stdout, stderr, pty
	end  map[string]any    // the end event, nil without one
	fail string            // the code the stream failed with
}

func (a *agent) openCall(as, method string, q any, header ...string) *tail {
	a.Helper()
	if as != "" {
		header = append(header, "Authorization", basic(as))
	}
	return a.openStream(method, strings.NewReader(framed(q)), header...)
}

func (a *agent) openStream(method string, body io.Reader, header ...string) *tail {
	a.Helper()
	response := a.request("POST", "/"+method, body, append(header, "Content-Type", "application/connect+json")...)
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/connect+json" {
		a.Fatalf("%s: %d", method, response.StatusCode)
	}
	a.Cleanup(func() { response.Body.Close() })
	return &tail{a: a, body: response.Body}
}

// next is the next message, or the last one's error.
func (t *tail) next() (message map[string]any, last bool) {
	var head struct {
		Flags byte
		Size  uint32
	}
	if err := binary.Read(t.body, binary.BigEndian, &head); err != nil {
		t.a.Fatalf("the stream broke off: %v", err)
	}
	data := make([]byte, head.Size)
	if _, err := io.ReadFull(t.body, data); err != nil {
		t.a.Fatal(err)
	}
	must(json.Unmarshal(data, &message))
	return message, head.Flags == 2
}

// event is the next event of a process; its name and content.
func (t *tail) event() (name string, content map[string]any) {
	t.a.Helper()
	message, last := t.next()
	if last {
		if failure, ok := message["error"].(map[string]any); ok {
			return "error", failure
		}
		return "close", nil
	}
	for name, content := range message["event"].(map[string]any) {
		return name, content.(map[string]any)
	}
	t.a.Fatal("an empty event")
	return "", nil
}

// begin starts a process and reads its first event.
func (a *agent) begin(as string, q map[string]any, header ...string) *tail {
	a.Helper()
	return a.openCall(as, "process.Process/Start", q, header...).begun()
}

func (t *tail) begun() *tail {
	t.a.Helper()
	name, content := t.event()
	if name != "start" {
		t.a.Fatalf("%s: %v", name, content)
	}
	t.pid = int(content["pid"].(float64))
	return t
}

// text reads output until it holds what is waited for.
func (t *tail) until(text string) string {
	t.a.Helper()
	for got := ""; ; {
		if strings.Contains(got, text) {
			return got
		}
		name, content := t.event()
		if name != "data" {
			t.a.Fatalf("waiting for %q after %q: %s %v", text, got, name, content)
		}
		for _, encoded := range content {
			data, err := base64.StdEncoding.DecodeString(encoded.(string))
			must(err)
			got += string(data)
		}
	}
}

func (t *tail) rest() (p process) {
	t.a.Helper()
	p = process{of: map[string]string{}}
	printed := map[string]*strings.Builder{}
	defer func() {
		for stream, text := range printed {
			p.of[stream] = text.String()
		}
	}()
	for {
		switch name, content := t.event(); name {
		case "data":
			for stream, encoded := range content {
				data, err := base64.StdEncoding.DecodeString(encoded.(string))
				must(err)
				if printed[stream] == nil {
					printed[stream] = &strings.Builder{}
				}
				printed[stream].Write(data)
			}
		case "end":
			p.end = content
		case "error":
			p.fail = content["code"].(string) + ": " + content["message"].(string)
			return p
		case "close":
			return p
		}
	}
}

func shell(script string, more ...any) map[string]any {
	config := map[string]any{"cmd": "/bin/sh", "args": []string{"-c", script}}
	request := map[string]any{"process": config}
	for i := 0; i < len(more); i += 2 {
		switch name := more[i].(string); name {
		case "envs", "cwd":
			config[name] = more[i+1]
		default:
			request[name] = more[i+1]
		}
	}
	return request
}

func pid(n int) map[string]any { return map[string]any{"process": map[string]any{"pid": n}} }

// templateSays sets the template's defaults for one test.
func templateSays(t testing.TB, content string) {
	old := defaults.Path
	defaults.Path = filepath.Join(t.TempDir(), "defaults.json")
	must(os.WriteFile(defaults.Path, []byte(content), 0o644))
	t.Cleanup(func() { defaults.Path = old })
}

func TestEnvdAdmitsNobodyWithoutToken(t *testing.T) {
	a := bareAgent(t)
	paths := []string{"/metrics", "/envs", "/files?path=/etc/passwd", "/nowhere", "/commands"}
	for _, path := range paths {
		a.rejected(a.do("GET", path, nil), 503)
	}
	a.rejected(a.call("", "process.Process/List", nil), 503)
	a.init(map[string]any{"access_token": "secret"})
	a.token = ""
	for _, wrong := range []string{"", "secre", "Secret"} {
		for _, path := range paths {
			a.rejected(a.do("GET", path, nil, "X-Access-Token", wrong), 401)
		}
		a.rejected(a.call("", "process.Process/List", nil, "X-Access-Token", wrong), 401)
		a.rejected(a.do("POST", "/process.Process/Start", framed(shell("true")), "X-Access-Token", wrong, "Content-Type", "application/connect+json"), 401)
		a.rejected(a.do("POST", "/files?path=/tmp/x", "x", "X-Access-Token", wrong), 401)
		a.rejected(a.do("DELETE", "/files", nil, "X-Access-Token", wrong), 401)
		a.rejected(a.do("POST", "/health", nil, "X-Access-Token", wrong), 401)
		a.rejected(a.do("POST", "/files/compose", "{}", "X-Access-Token", wrong), 401)
	}
	if r := a.do("GET", "/health", nil); r.status != 204 || len(r.body) != 0 {
		t.Fatal(r)
	}
	a.token = "secret"
	for _, path := range []string{"/init", "/freeze", "/upgrade", "/process.Process/Nothing", "//files", "/files/", "/%66iles", "/process.Process%2fList"} {
		a.rejected(a.do("POST", path, "{}"), 404)
	}
	if r := a.do("GET", "/process.Process/List", nil); a.rejected(r, 405) == "" || r.header.Get("Allow") != "POST" {
		t.Error(r.header)
	}
	if r := a.call("", "process.Process/List", nil); r.status != 200 || string(r.body) != `{"processes":[]}` {
		t.Error(r)
	}
}

func TestEnvdAnswersPagesOfAnyOrigin(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"access_token": "secret"})
	a.token = ""
	asked := a.do("OPTIONS", "/process.Process/Start", nil, "Origin", "https://x", "Access-Control-Request-Headers", "x-access-token")
	if asked.status != 204 || asked.header.Get("Access-Control-Allow-Headers") != "*" || !strings.Contains(asked.header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Error(asked, asked.header)
	}
	for _, r := range []reply{a.do("GET", "/metrics", nil), a.do("GET", "/health", nil), a.do("GET", "/nowhere", nil)} {
		if r.header.Get("Access-Control-Allow-Origin") != "*" {
			t.Error(r, r.header)
		}
	}
}

func TestEnvdTellsMetricsAndEnvironment(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"template_id": "base", "env": map[string]string{"A": "1"}})
	got := a.do("GET", "/metrics", nil).object()
	for _, name := range []string{"ts", "cpu_count", "mem_total", "mem_used", "mem_cache", "disk_total", "disk_used"} {
		if n, ok := got[name].(float64); !ok || n <= 0 {
			t.Errorf("%s: %v", name, got[name])
		}
	}
	if share, ok := got["cpu_used_pct"].(float64); !ok || share < 0 || share > 100 {
		t.Errorf("cpu_used_pct: %v", got["cpu_used_pct"])
	}
	env := a.do("GET", "/envs", nil).object()
	want := map[string]any{"A": "1", "E2B_SANDBOX": "true", "E2B_SANDBOX_ID": "sbx_test", "E2B_TEMPLATE_ID": "base"}
	if fmt.Sprint(env) != fmt.Sprint(want) {
		t.Error(env)
	}
}

func TestQuestionsOfTheHostAreNoUse(t *testing.T) {
	a := newAgent(t)
	a.eventually("time passes", func() bool { return a.activity()["idle_ms"].(float64) > 1000 })
	a.do("GET", "/metrics", nil)
	a.do("GET", "/health", nil)
	a.do("OPTIONS", "/files", nil)
	if idle := a.activity()["idle_ms"].(float64); idle < 1000 {
		t.Error("the sandbox was used:", idle)
	}
	a.do("GET", "/files?path=/etc/passwd", nil)
	if idle := a.activity()["idle_ms"].(float64); idle >= 1000 {
		t.Error("a download is no use:", idle)
	}
}
