package api

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"space/agent/freezer"
)

func (a *agent) needsFreezer() {
	a.Helper()
	if _, err := os.Stat(filepath.Join(groupDir, a.group)); err != nil {
		a.Skip("this machine has no freezer")
	}
}

// freeze orders a freeze with these fields and returns what it answers.
func (a *agent) freeze(fields string) answer {
	a.Helper()
	return a.order("freeze " + fields).done(a)
}

func (a *agent) thaw() {
	a.Helper()
	if r := a.order("thaw reason=snapshot").done(a); r["frozen"] != "0" {
		a.Fatal(r)
	}
}

func (a *agent) activity() map[string]any {
	a.Helper()
	r := a.do("GET", a.internal+"/activity", nil)
	if r.status != 200 {
		a.Fatal(r)
	}
	return r.object()
}

// counter starts a command that writes all the time, out of its own session too.
func (a *agent) counter() (stream *reader, size func() int64) {
	a.Helper()
	file := filepath.Join(a.TempDir(), "counter")
	stream = a.start(with(sh("setsid sh -c 'while [ -d /proc/"+strconv.Itoa(os.Getpid())+" ]; do printf x >> "+file+"; done' & echo up; wait"), "user", "root"))
	size = func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	a.eventually("the counter counts", func() bool { return size() > 0 })
	return stream, size
}

func (a *agent) stands(size func() int64) {
	a.Helper()
	before := size()
	time.Sleep(40 * time.Millisecond)
	if after := size(); after != before {
		a.Fatalf("programs ran: %d became %d", before, after)
	}
}

func (a *agent) runs(size func() int64) {
	a.Helper()
	before := size()
	a.eventually("programs run", func() bool { return size() > before })
}

func (a *agent) script(name, text string) {
	a.Helper()
	must(os.WriteFile(filepath.Join(a.hooks, name), []byte(text), 0o755))
}

// The steps a sandbox that is paused takes: whoever reads goes on reading.
func TestFreezeAndResume(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	stream, size := a.counter()
	for _, reason := range []string{"suspend", "snapshot", "fork", "pause"} {
		answer := a.freeze("reason=" + reason)
		if answer["frozen"] != "1" || answer["hook"] != "" {
			t.Fatal(answer)
		}
		health := a.do("GET", a.internal+"/health", nil).object()
		if health["frozen"] != true || health["ready"] != false || a.activity()["frozen"] != true {
			t.Fatal(health)
		}
		a.stands(size)
		if again := a.freeze("reason=" + reason); again["frozen"] != "1" {
			t.Fatal(again)
		}
		a.stands(size)
		a.init(map[string]any{"reason": "resume"})
		a.runs(size)
	}
	health := a.do("GET", a.internal+"/health", nil).object()
	if health["frozen"] != false || health["ready"] != true {
		t.Fatal(health)
	}
	syscall.Kill(-stream.pid, syscall.SIGKILL)
	if res := stream.rest(0); res.data != "up\n" || res.exit == nil {
		t.Fatal("the stream did not live through it:", res)
	}
}

func TestThawIsRepeatable(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	_, size := a.counter()
	a.thaw()
	a.freeze("reason=suspend sync=1")
	a.stands(size)
	a.thaw()
	a.thaw()
	a.runs(size)
}

func TestThawValidates(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	_, size := a.counter()
	a.freeze("reason=pause")
	for _, bad := range []string{"time_unix_ns=-1", "entropy=AAAA", "entropy=" + seed[1:]} {
		field, _, _ := strings.Cut(bad, "=")
		if r := a.order("thaw " + bad); r.status != 422 || r.code != "invalid_argument" || !strings.HasPrefix(r.detail, field) {
			t.Error(bad, r)
		}
	}
	a.stands(size)
	a.order("thaw reason=pause time_unix_ns=1700000000000000000 entropy=" + seed).done(a)
	a.runs(size)
}

// User code goes on after everything else is right, and not before.
func TestInitBeforeUserCode(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	_, size := a.counter()
	a.freeze("reason=suspend")
	a.init(map[string]any{"reason": "restore", "thaw": false, "sandbox_id": "sbx_new"})
	a.stands(size)
	if id := a.do("GET", "/v1/health", nil).object()["sandbox_id"]; id != "sbx_new" {
		t.Fatal(id)
	}
	// What is refused changes nothing.
	a.refused(a.do("POST", a.internal+"/init", map[string]any{"sandbox_id": "x"}), 422, "invalid_argument")
	a.stands(size)
	a.init(map[string]any{"reason": "restore"})
	a.runs(size)
}

// A host that went away leaves nobody frozen.
func TestFreezeEndsByItself(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	_, size := a.counter()
	a.freeze("reason=snapshot limit_ms=200")
	a.runs(size)
	// And not a later one by an earlier one's limit.
	a.freeze("reason=snapshot limit_ms=200")
	a.freeze("reason=snapshot limit_ms=60000")
	time.Sleep(300 * time.Millisecond)
	a.stands(size)
}

func TestFreezeValidates(t *testing.T) {
	a := newAgent(t)
	if r := a.order("freeze reason=boot"); r.status != 422 || r.code != "invalid_argument" || !strings.HasPrefix(r.detail, "reason") {
		t.Error(r)
	}
	if r := a.order("freeze reason=snapshot fsfreeze=1"); r.status != 409 || r.code != "no_fsfreeze" {
		t.Error(r)
	}
	body := map[string]any{"sandbox_id": "s", "hostname": "h", "time_unix_ns": 1, "entropy": seed, "reason": "whim"}
	a.refused(a.do("POST", a.internal+"/init", body), 422, "invalid_argument")
	for _, path := range []string{"/freeze", "/thaw"} { // there is one way to do it
		a.refused(a.do("POST", a.internal+path, map[string]any{"reason": "pause"}), 404, "not_found")
	}
}

// A disk-only snapshot: what programs wrote is on the disk, whoever writes
// waits, the agent's own uploads too, and the agent answers all the while.
func TestFileSystemFreeze(t *testing.T) {
	point := ext4(t)
	root, err := freezer.OpenFileSystem(point)
	must(err)
	a := agentOn(t, root)
	a.init(nil)
	upload := func(name string) chan int {
		done := make(chan int, 1)
		go func() { done <- a.do("PUT", "/v1/files?user=root&path="+filepath.Join(point, name), "content").status }()
		return done
	}
	hangs := func(done chan int) {
		t.Helper()
		select {
		case status := <-done:
			t.Fatal("was not held up:", status)
		case <-time.After(50 * time.Millisecond):
		}
	}
	end := map[string]func(){
		"thaw":  a.thaw,
		"init":  func() { a.init(map[string]any{"reason": "resume"}) },
		"limit": func() {},
	}
	for name, wake := range end {
		limit := 60000
		if name == "limit" {
			limit = 400
		}
		if status := <-upload("before-" + name); status != 201 {
			t.Fatal(status)
		}
		a.freeze(fmt.Sprintf("reason=snapshot fsfreeze=1 limit_ms=%d", limit))
		during := upload("during-" + name)
		hangs(during)
		if r := a.do("GET", "/v1/files?user=root&path="+filepath.Join(point, "before-"+name), nil); string(r.body) != "content" {
			t.Fatal(r)
		}
		wake()
		if status := <-during; status != 201 {
			t.Fatal(status)
		}
	}
}

// ext4 is a file system of its own, in a file; the mount ends with the tests' namespace.
func ext4(t *testing.T) (point string) {
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	must(os.Mkdir(point, 0o755))
	for _, argv := range [][]string{{"mke2fs", "-q", "-t", "ext4", image, "16M"}, {"mount", "-o", "loop", image, point}} {
		path, err := exec.LookPath(argv[0])
		must(err)
		p, err := testReaper.Start(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
		must(err)
		if <-p.Done(); p.Status() != 0 {
			t.Fatalf("%v: %v", argv, p.Status())
		}
	}
	t.Cleanup(func() { syscall.Unmount(point, syscall.MNT_DETACH) })
	return point
}

func TestHooks(t *testing.T) {
	a := newAgent(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	for name, c := range map[string]struct {
		script, tail, status string
		timedOut             bool
		timeoutMS            int
	}{
		"works":   {"#!/bin/sh\necho \"$SPACE_REASON as $(id -u)\"", "suspend as 0\n", "0", false, 10000},
		"fails":   {"#!/bin/sh\necho err >&2; exit 3", "err\n", "3", false, 10000},
		"hangs":   {"#!/bin/sh\necho begun; echo $$ > " + pidFile + "; sleep 100", "begun\n", "-", true, 300},
		"no time": {"#!/bin/sh\necho ran", "", "", false, 0},
		"chatty":  {"#!/bin/sh\nyes | head -c 100000; echo end", "", "0", false, 10000},
	} {
		a.script("pre-suspend", c.script)
		began := time.Now()
		told := a.freeze(fmt.Sprintf("reason=suspend hook_timeout_ms=%d", c.timeoutMS))
		if again := a.freeze("reason=suspend"); again["frozen"] == "1" && again["hook"] != "" {
			t.Errorf("%s: a hook ran in a frozen sandbox: %v", name, again)
		}
		a.thaw()
		if (told["hook"] == "1") != (c.timeoutMS > 0) || told["status"] != c.status || (told["timed_out"] == "1") != c.timedOut {
			t.Errorf("%s: %v", name, told)
		}
		tail := told["output"]
		if name == "chatty" {
			if len(tail) > 2048 || !strings.HasSuffix(tail, "y\nend\n") {
				t.Errorf("%s: %d bytes", name, len(tail))
			}
		} else if tail != c.tail {
			t.Errorf("%s: %q", name, tail)
		}
		if c.timedOut && time.Since(began) > 5*time.Second {
			t.Errorf("%s: took %v", name, time.Since(began))
		}
	}
	text, err := os.ReadFile(pidFile)
	must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	must(err)
	a.eventually("the hook that hung is gone", func() bool { return !alive(pid) })
	a.script("pre-suspend", "not a program")
	if told := a.freeze("reason=suspend"); told["hook"] != "1" || told["output"] == "" {
		t.Error(told)
	}
	a.thaw()
	must(os.Chmod(filepath.Join(a.hooks, "pre-suspend"), 0o644))
	if told := a.freeze("reason=suspend"); told["hook"] != "" {
		t.Error(told)
	}
	if r := a.do("GET", "/v1/commands", nil).object()["commands"].([]any); len(r) != 0 {
		t.Error("hooks are listed as commands:", r)
	}
}

func TestPostRestoreHook(t *testing.T) {
	a := newAgent(t)
	a.script("post-restore", "#!/bin/sh\necho \"$SPACE_REASON\"; exit 4")
	for reason, runs := range map[string]bool{"boot": false, "warm": false, "restore": true, "fork": true, "resume": true} {
		a.init(map[string]any{"reason": reason})
		if !runs {
			if hook, _ := a.activity()["hook"].(map[string]any); hook != nil && hook["reason"] == reason {
				t.Error(reason, hook)
			}
			continue
		}
		a.eventually("the hook is told of", func() bool {
			hook, _ := a.activity()["hook"].(map[string]any)
			return hook != nil && hook["reason"] == reason && hook["running"] == false && hook["status"] == 4.0 &&
				hook["output_tail"] == reason+"\n" && hook["name"] == "post-restore"
		})
	}
	// It holds up nobody.
	a.script("post-restore", "#!/bin/sh\nsleep 100")
	a.init(map[string]any{"reason": "restore", "hook_timeout_s": 0.3})
	if hook := a.activity()["hook"].(map[string]any); hook["running"] != true {
		t.Error(hook)
	}
	a.eventually("it is killed", func() bool { return a.activity()["hook"].(map[string]any)["timed_out"] == true })
}

// A fork's child: commands run on and can be read, readers of the parent are
// gone, and so is the parent's token.
func TestForkChildIsAnother(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"access_token": "parent"})
	stream := a.start(sh("echo first; sleep 100"))
	stream.next()
	idle, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
	must(err)
	defer idle.Close()
	a.do("GET", "/health", nil) // the idle one has been accepted before this was
	a.freeze("reason=fork")
	a.init(map[string]any{"reason": "fork", "sandbox_id": "sbx_child", "access_token": "child"})
	idle.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := idle.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Fatal("an old connection is open:", err)
	}
	if _, ok := stream.next(); ok {
		t.Fatal("the parent's reader goes on")
	}
	a.eventually("no reader is counted", func() bool { return a.activity()["attached_readers"] == 0.0 })
	a.refused(a.do("GET", "/v1/commands", nil, "X-Access-Token", "parent"), 401, "unauthorized")
	command := a.do("GET", "/v1/commands/"+stream.id, nil).object()
	if command["running"] != true || command["pid"] != float64(stream.pid) {
		t.Fatal(command)
	}
	if data := a.output(stream.id, "?follow=false").rest(0).data; data != "first\n" {
		t.Fatal(data)
	}
	// A pause is no such thing.
	kept := a.output(stream.id, "")
	kept.next()
	a.freeze("reason=pause")
	a.init(map[string]any{"reason": "resume", "access_token": "child"})
	a.do("DELETE", "/v1/commands/"+stream.id, nil)
	if res := kept.rest(6); res.exit == nil {
		t.Fatal("the reader was cut off by a pause")
	}
}

// A command that was asked for while frozen begins after a pause, and not in a
// copy, whose client would never know.
func TestCommandsWaitForTheThaw(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	marks := a.TempDir()
	ask := func(name string) chan error {
		done := make(chan error, 1)
		go func() {
			body := fmt.Sprintf(`{"args": ["touch", %q], "user": "root"}`, filepath.Join(marks, name))
			r, err := (&http.Client{Transport: &http.Transport{}}).Post(a.url+"/v1/commands", "application/json", strings.NewReader(body))
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			done <- err
		}()
		select {
		case <-done:
			t.Fatal("did not wait")
		case <-time.After(50 * time.Millisecond):
		}
		return done
	}
	there := func(name string) bool { _, err := os.Stat(filepath.Join(marks, name)); return err == nil }
	a.freeze("reason=pause")
	done := ask("paused")
	a.init(map[string]any{"reason": "resume"})
	if err := <-done; err != nil || !there("paused") {
		t.Fatal(err)
	}
	a.freeze("reason=fork")
	done = ask("forked")
	a.init(map[string]any{"reason": "fork"})
	<-done
	if a.run(sh("true")); there("forked") {
		t.Fatal("a command began in a copy")
	}
}

func TestActivity(t *testing.T) {
	a := newAgent(t)
	is := func(field string, want float64) {
		t.Helper()
		a.eventually(fmt.Sprintf("%s is %g", field, want), func() bool { return a.activity()[field] == want })
	}
	is("foreground_commands", 0)
	is("open_connections", 0)
	preview := listen(t)
	t.Cleanup(func() { preview.Close() })
	viewer, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: worker}}).Dial("tcp4", preview.Addr().String())
	must(err)
	is("open_connections", 1)
	viewer.Close()
	is("open_connections", 0)
	stream := a.start(sh("sleep 100"))
	is("foreground_commands", 1)
	is("attached_readers", 1)
	stream.close()
	is("attached_readers", 0)
	is("foreground_commands", 1)
	began := time.Now()
	a.eventually("time passes", func() bool { return time.Since(began) > 200*time.Millisecond })
	if idle := a.activity()["idle_ms"].(float64); idle >= 200 {
		t.Error("idle with a command in the foreground:", idle)
	}
	a.do("DELETE", "/v1/commands/"+stream.id, nil)
	is("foreground_commands", 0)
	r := a.do("POST", "/v1/commands", with(sh("sleep 100"), "detach", true))
	is("running_commands", 1)
	is("foreground_commands", 0)
	a.do("DELETE", "/v1/commands/"+r.object()["command_id"].(string), nil)

	// Nothing but requests counts now, and questions do not.
	idle := a.activity()["idle_ms"].(float64)
	a.eventually("time passes", func() bool { return a.activity()["idle_ms"].(float64) > idle+2000 })
	before := a.activity()["idle_ms"].(float64)
	a.do("GET", "/health", nil)
	if a.activity()["idle_ms"].(float64) < before {
		t.Error("a health check counts as use")
	}
	a.do("GET", "/v1/commands", nil)
	if a.activity()["idle_ms"].(float64) >= before {
		t.Error("a request does not count as use")
	}
}

// A warm-up is a command's whole way, and leaves nothing behind.
func TestWarmUpLeavesNothing(t *testing.T) {
	a := newAgent(t)
	mark := filepath.Join(a.TempDir(), "mark")
	must(os.Chmod(filepath.Dir(mark), 0o777))
	r := a.do("POST", a.internal+"/warm", map[string]any{"commands": []string{"touch " + mark, "exit 3"}})
	if r.status != 200 || len(r.object()["command_ms"].([]any)) != 5 {
		t.Fatal(r)
	}
	if r := a.do("POST", a.internal+"/warm", nil); r.status != 200 || len(r.object()["command_ms"].([]any)) != 3 {
		t.Fatal(r)
	}
	if list := a.do("GET", "/v1/commands", nil).object()["commands"].([]any); len(list) != 0 {
		t.Fatal(list)
	}
	if act := a.activity(); act["running_commands"] != 0.0 || act["attached_readers"] != 0.0 {
		t.Fatal(act)
	}
	if _, err := os.Stat(mark); err == nil {
		return
	}
	// The folder above may be closed to the user; then the command failed, which is no failure here.
	if info, _ := os.Stat(filepath.Dir(filepath.Dir(mark))); info.Mode()&0o001 != 0 {
		t.Error("its own commands were not run")
	}
}

func TestWarmUpBeforeInit(t *testing.T) {
	a := bareAgent(t)
	if r := a.do("POST", a.internal+"/warm", nil); r.status != 200 {
		t.Fatal(r)
	}
	a.refused(a.do("GET", "/v1/commands", nil), 503, "not_initialised")
}

func TestNoWarmUpWhileFrozen(t *testing.T) {
	a := newAgent(t)
	a.needsFreezer()
	a.freeze("reason=suspend")
	a.refused(a.do("POST", a.internal+"/warm", nil), 409, "frozen")
}
