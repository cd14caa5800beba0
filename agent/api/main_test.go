package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"space/agent/command"
	"space/agent/freezer"
	"space/agent/hook"
	"space/agent/identity"
	"space/agent/quiesce"
	"space/agent/reaper"
)

// The tests run as in a guest: root, a user called "user", and files nobody
// else minds. TestMain therefore starts the test program a second time in a
// mount namespace of its own, with its own /etc/passwd and /etc/group.
const inside = "SPACE_AGENT_TEST_DIR"

var testReaper *reaper.Reaper

func TestMain(m *testing.M) {
	if dir := os.Getenv(inside); dir != "" {
		furnish(dir)
		// As process 1 would: orphans become our children.
		syscall.RawSyscall(syscall.SYS_PRCTL, 36, 1, 0)
		testReaper = reaper.New()
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests start processes as other users and mount file systems: run them as root")
		os.Exit(1)
	}
	closeInherited()
	// A shell in the background has SIGINT ignored, and so would every command here.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	dir, err := os.MkdirTemp("", "agent-test-")
	must(err)
	os.Chmod(dir, 0o755)
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), inside+"="+dir),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Sys:   &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL},
	})
	must(err)
	state, err := child.Wait()
	must(err)
	os.RemoveAll(dir)
	os.Exit(state.ExitCode())
}

// closeInherited keeps descriptors that leaked into the test from leaking on;
// one test looks for ours.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	must(err)
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

func furnish(dir string) {
	must(syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	if _, err := os.Stat(filepath.Join(groupDir, "tasks")); err != nil {
		os.MkdirAll(groupDir, 0o755)
		syscall.Mount("cgroup", groupDir, "cgroup", 0, "freezer") // where the kernel has none, tests are skipped
	}
	home := filepath.Join(dir, "home")
	must(os.MkdirAll(home, 0o755))
	must(os.Chown(home, 1000, 1000))
	for path, content := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/bash\n" +
			"user:x:1000:1000:User:" + home + ":/bin/bash\n" +
			"homeless:x:1001:1001::/nonexistent:/bin/sh\n",
		"/etc/group": "root:x:0:\nuser:x:1000:\nhomeless:x:1001:\ndocker:x:1500:user,other\nwheel:x:1600:homeless,user\n",
	} {
		file := filepath.Join(dir, filepath.Base(path))
		must(os.WriteFile(file, []byte(content), 0o644))
		must(syscall.Mount(file, path, "", syscall.MS_BIND, ""))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// agent is a whole agent on real sockets.
type agent struct {
	testing.TB
	public   *Public
	inner    *Internal
	group    string // the freezer group's name
	hooks    string // folder of the hooks
	url      string
	internal string
	orders   string // address of the listener for orders
	token    string
	client   *http.Client
}

const seed = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

// newAgent is an agent that has been initialised; bareAgent one that has not.
func newAgent(t testing.TB) *agent {
	a := bareAgent(t)
	a.init(map[string]any{})
	return a
}

func bareAgent(t testing.TB) *agent { return agentOn(t, nil) }

// agentOn is an agent whose root file system, for freezing, is root.
func agentOn(t testing.TB, root *freezer.FileSystem) *agent {
	a := &agent{TB: t, hooks: t.TempDir(), group: fmt.Sprintf("agent-test-%d-%d", os.Getpid(), atomic.AddInt64(&agents, 1))}
	group, err := freezer.Open(filepath.Join(t.TempDir(), "freezer"), a.group)
	if err != nil {
		t.Logf("nothing can be frozen here: %v", err)
		group = &freezer.Group{}
	}
	id := identity.New(identity.Machine{Etc: t.TempDir()})
	table := command.NewTable(testReaper, group, id.Env)
	hooks := hook.New(table, a.hooks)
	guest := quiesce.New(group, root, hooks)
	a.public = NewPublic("test", id, table)
	a.public.keepalive = time.Hour // nothing may depend on its flush
	a.inner = NewInternal(a.public, guest, hooks, worker, func() {})
	public, private, ordered := listen(t), listen(t), listen(t)
	go a.public.Serve(public)
	go a.inner.Serve(private)
	go a.inner.ServeOrders(ordered)
	a.orders = ordered.Addr().String()
	a.url, a.internal = "http://"+public.Addr().String(), "http://"+private.Addr().String()
	transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: worker}}).DialContext}
	a.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		guest.Thaw(true)
		for _, c := range table.List() {
			c.Kill()
		}
		transport.CloseIdleConnections()
		public.Close()
		private.Close()
		ordered.Close()
		if group.Available() {
			removeGroup(t, a.group)
		}
	})
	return a
}

var agents int64

// worker is the address the tests' requests come from, and nobody else's on
// this machine.
var worker = net.IPv4(127, 1+byte(os.Getpid()>>16), byte(os.Getpid()>>8), byte(os.Getpid()))

// groupDir is where the tests look at the kernel's freezer groups.
const groupDir = "/sys/fs/cgroup/freezer"

// removeGroup kills whoever is in a freezer group and gives it back.
func removeGroup(t testing.TB, name string) {
	dir := filepath.Join(groupDir, name)
	for deadline := time.Now().Add(10 * time.Second); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(dir); os.IsNotExist(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s cannot be removed", dir)
		}
		killAll(dir)
	}
}

func killAll(dir string) {
	tasks, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, text := range strings.Fields(string(tasks)) {
		if pid, err := strconv.Atoi(text); err == nil {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (a *agent) init(change map[string]any) map[string]any {
	a.Helper()
	body := map[string]any{"sandbox_id": "sbx_test", "hostname": "box", "env": map[string]string{"SANDBOX": "yes"},
		"time_unix_ns": 1700000000000000000, "entropy": seed}
	for k, v := range change {
		body[k] = v
	}
	r := a.do("POST", a.internal+"/init", body)
	if r.status != 200 {
		a.Fatalf("init: %v", r)
	}
	a.token, _ = change["access_token"].(string)
	return r.object()
}

// reply is a complete answer.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) String() string { return fmt.Sprintf("%d %s", r.status, r.body) }

func (r reply) object() (object map[string]any) {
	if err := json.Unmarshal(r.body, &object); err != nil {
		panic(fmt.Sprintf("%v: %s", err, r.body))
	}
	return object
}

// request sends body: an io.Reader or string as it is, anything else as JSON.
func (a *agent) request(method, url string, body any, header ...string) *http.Response {
	a.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		reader = b
	case string:
		reader = strings.NewReader(b)
	default:
		encoded, err := json.Marshal(b)
		must(err)
		reader = bytes.NewReader(encoded)
	}
	if strings.HasPrefix(url, "/") {
		url = a.url + url
	}
	request, err := http.NewRequest(method, url, reader)
	if err != nil {
		a.Fatal(err)
	}
	if a.token != "" {
		request.Header.Set("X-Access-Token", a.token)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := a.client.Do(request)
	if err != nil {
		a.Fatal(err)
	}
	return response
}

func (a *agent) do(method, url string, body any, header ...string) reply {
	a.Helper()
	response := a.request(method, url, body, header...)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		a.Fatal(err)
	}
	return reply{response.StatusCode, response.Header, content}
}

// refused checks that an answer is a problem with this status and code.
func (a *agent) refused(r reply, status int, code string) string {
	a.Helper()
	if r.status != status || r.header.Get("Content-Type") != "application/problem+json" {
		a.Fatalf("want %d %s, got %v (%s)", status, code, r, r.header.Get("Content-Type"))
	}
	problem := r.object()
	if problem["code"] != code || problem["type"] != "about:blank" || problem["status"] != float64(status) ||
		problem["title"] != http.StatusText(status) || problem["detail"] == "" {
		a.Fatalf("want code %s, got %s", code, r.body)
	}
	return problem["detail"].(string)
}

// line is one line of a stream.
type line struct {
	Type       string  `json:"type"`
	CommandID  string  `json:"command_id"`
	PID        int     `json:"pid"`
	Offset     int64   `json:"offset"`
	Data       []byte  `json:"data"`
	NextOffset int64   `json:"next_offset"`
	Code       *int    `json:"code"`
	Signal     *string `json:"signal"`
	TimedOut   bool    `json:"timed_out"`
	DurationMS int64   `json:"duration_ms"`
}

// reader reads a stream line by line.
type reader struct {
	a        *agent
	response *http.Response
	lines    *bufio.Scanner
	id       string
	pid      int
}

func (a *agent) open(method, url string, body any) *reader {
	a.Helper()
	response := a.request(method, url, body)
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/x-ndjson" {
		content, _ := io.ReadAll(response.Body)
		a.Fatalf("%s %s: %d %s", method, url, response.StatusCode, content)
	}
	a.Cleanup(func() { response.Body.Close() })
	r := &reader{a: a, response: response, lines: bufio.NewScanner(response.Body), id: response.Header.Get("X-Command-Id")}
	r.lines.Buffer(nil, 1<<20)
	return r
}

// start begins a command and reads its first line.
func (a *agent) start(body map[string]any) *reader {
	a.Helper()
	r := a.open("POST", "/v1/commands", body)
	first, ok := r.next()
	if !ok || first.Type != "start" || first.CommandID != r.id || r.id == "" || first.PID <= 1 {
		a.Fatalf("first line: %+v", first)
	}
	r.pid = first.PID
	return r
}

// output reads a command's output again.
func (a *agent) output(id, query string) *reader {
	a.Helper()
	return a.open("GET", "/v1/commands/"+id+"/output"+query, nil)
}

func (r *reader) next() (l line, ok bool) {
	if !r.lines.Scan() {
		return l, false
	}
	must(json.Unmarshal(r.lines.Bytes(), &l))
	return l, true
}

func (r *reader) close() { r.response.Body.Close() }

// result is a whole stream, checked for order.
type result struct {
	from   int64 // offset of the first byte
	data   string
	of     map[string]string // by stream
	gaps   int64             // bytes missed
	exit   *line
	chunks int
}

// rest reads to the end and checks that offsets fit together.
func (r *reader) rest(from int64) result {
	r.a.Helper()
	res := result{from: from, of: map[string]string{}}
	var data strings.Builder
	next := from
	for {
		l, ok := r.next()
		if !ok {
			break
		}
		if res.exit != nil {
			r.a.Fatalf("a line after the exit: %+v", l)
		}
		switch l.Type {
		case "stdout", "stderr", "pty":
			if l.Offset != next || len(l.Data) == 0 {
				r.a.Fatalf("chunk of %d bytes at %d, expected at %d", len(l.Data), l.Offset, next)
			}
			data.Write(l.Data)
			res.of[l.Type] += string(l.Data)
			next += int64(len(l.Data))
			res.chunks++
		case "gap":
			if l.Offset != next || l.NextOffset <= next {
				r.a.Fatalf("gap %+v, expected at %d", l, next)
			}
			res.gaps += l.NextOffset - next
			next = l.NextOffset
		case "exit":
			exit := l
			res.exit = &exit
			if l.NextOffset != next || (l.Code == nil) == (l.Signal == nil) {
				r.a.Fatalf("exit %+v, expected next_offset %d", l, next)
			}
		case "keepalive":
		default:
			r.a.Fatalf("unknown line %+v", l)
		}
	}
	res.data = data.String()
	return res
}

// run runs a command to its end.
func (a *agent) run(body map[string]any) result {
	a.Helper()
	res := a.start(body).rest(0)
	if res.exit == nil {
		a.Fatal("the stream ended without an exit line")
	}
	return res
}

func (r result) code() int {
	if r.exit.Code == nil {
		return -1
	}
	return *r.exit.Code
}

func sh(script string) map[string]any {
	return map[string]any{"args": []string{"/bin/sh", "-c", script}}
}

func with(body map[string]any, more ...any) map[string]any {
	for i := 0; i < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return body
}

// eventually waits for a fact.
func (a *agent) eventually(what string, fact func() bool) {
	a.Helper()
	for deadline := time.Now().Add(10 * time.Second); !fact(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			a.Fatal("never came true: " + what)
		}
	}
}

// alive tells a running process from a zombie and a number nobody has.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
