package api

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestStreamsOutputAndExit(t *testing.T) {
	a := newAgent(t)
	r := a.run(map[string]any{"cmd": "echo out; sleep 0.1; echo err >&2; sleep 0.1; printf last; exit 3"})
	if r.of["stdout"] != "out\nlast" || r.of["stderr"] != "err\n" || r.data != "out\nerr\nlast" {
		t.Fatalf("%q", r.of)
	}
	if r.code() != 3 || r.exit.TimedOut || r.exit.DurationMS < 200 {
		t.Fatalf("%+v", r.exit)
	}
}

func TestLineIsSentAtOnce(t *testing.T) {
	a := newAgent(t)
	r := a.start(with(sh("echo one; read x; echo two"), "stdin", true))
	// The command now waits for us, so the first line must be here already.
	if l, ok := r.next(); !ok || string(l.Data) != "one\n" {
		t.Fatalf("%+v", l)
	}
	a.do("POST", "/v1/commands/"+r.id+"/stdin", "go\n")
	if res := r.rest(4); res.data != "two\n" {
		t.Fatalf("%q", res.data)
	}
}

func TestBinaryOutputIsExact(t *testing.T) {
	a := newAgent(t)
	want := make([]byte, 100_000)
	for i := range want {
		want[i] = byte(i * i >> 3)
	}
	file := filepath.Join(t.TempDir(), "bin")
	must(os.WriteFile(file, want, 0o644))
	if r := a.run(map[string]any{"args": []string{"cat", file}, "user": "root"}); r.data != string(want) || r.of["stdout"] != r.data {
		t.Fatal("output differs")
	}
}

func TestSignalEndsCommand(t *testing.T) {
	a := newAgent(t)
	for signal, name := range map[any]string{"SIGINT": "SIGINT", "term": "SIGTERM", 9: "SIGKILL", "10": "SIGUSR1", 34: "SIG34"} {
		r := a.start(map[string]any{"args": []string{"sleep", "100"}})
		if answer := a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": signal}); answer.status != 204 {
			t.Fatal(answer)
		}
		exit := r.rest(0).exit
		if exit.Signal == nil || *exit.Signal != name || exit.Code != nil {
			t.Fatalf("%v: %+v", signal, exit)
		}
		a.refused(a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": 2}), 409, "command_finished")
	}
	r := a.start(sh(`trap "echo caught; exit 7" INT; echo ready; while :; do sleep 0.05; done`))
	r.next()
	a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": "INT"})
	if res := r.rest(6); res.data != "caught\n" || res.code() != 7 {
		t.Fatalf("%q %+v", res.data, res.exit)
	}
}

// 300 exit codes at once, beside orphans that only the same wait can collect.
func TestNoExitCodeIsLost(t *testing.T) {
	a := newAgent(t)
	var wait sync.WaitGroup
	slots := make(chan struct{}, 60)
	for i := 0; i < 300; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			slots <- struct{}{}
			defer func() { <-slots }()
			script := fmt.Sprintf("(sleep 0.0%d >/dev/null 2>&1 &) ; exit %d", i%7, i%200)
			if r := a.run(sh(script)); r.code() != i%200 {
				t.Errorf("command %d: %+v", i, r.exit)
			}
		}(i)
	}
	wait.Wait()
	if n := len(a.public.commands.List()); n != 256 {
		t.Errorf("%d finished commands are kept, want the newest 256", n)
	}
}

func TestEvictedCommandIsUnknown(t *testing.T) {
	a := newAgent(t)
	var ids []string
	for i := 0; i < 257; i++ {
		r := a.start(map[string]any{"args": []string{"true"}})
		r.rest(0)
		ids = append(ids, r.id)
	}
	a.eventually("the oldest is evicted", func() bool { return a.do("GET", "/v1/commands/"+ids[0], nil).status == 404 })
	a.refused(a.do("GET", "/v1/commands/"+ids[0]+"/output", nil), 404, "no_such_command")
	if r := a.do("GET", "/v1/commands/"+ids[256], nil); r.status != 200 {
		t.Fatal(r)
	}
}

// numbered is a command that prints lines "0000000\n" and so on: byte N tells where it belongs.
func numbered(lines int) map[string]any {
	return map[string]any{"args": []string{"seq", "-f", "%07.0f", "0", strconv.Itoa(lines - 1)}}
}

func numberedBytes(from, to int64) string {
	var b strings.Builder
	for i := from / 8; i <= to/8; i++ {
		fmt.Fprintf(&b, "%07d\n", i)
	}
	return b.String()[from%8 : from%8+to-from]
}

func TestSlowReaderDoesNotBlock(t *testing.T) {
	a := newAgent(t)
	const lines, limit = 3_000_000, 1 << 20 // 24 MB
	slow := a.start(with(numbered(lines), "output_limit_bytes", limit))
	// Nobody reads; the command finishes all the same.
	a.eventually("it finishes", func() bool { return a.do("GET", "/v1/commands/"+slow.id, nil).object()["running"] == false })
	r := slow.rest(0)
	if r.gaps == 0 || r.exit == nil || r.exit.NextOffset != lines*8 {
		t.Fatalf("gaps %d, exit %+v", r.gaps, r.exit)
	}
	if int64(len(r.data))+r.gaps != lines*8 {
		t.Fatalf("%d bytes and %d missed", len(r.data), r.gaps)
	}
	if tail := numberedBytes(lines*8-limit, lines*8); !strings.HasSuffix(r.data, tail) {
		t.Fatal("the newest bytes are not there")
	}
}

func TestGapIsExact(t *testing.T) {
	a := newAgent(t)
	id := a.start(with(numbered(1000), "output_limit_bytes", 1000))
	id.rest(0)
	again := a.output(id.id, "")
	if l, _ := again.next(); l.Type != "gap" || l.Offset != 0 || l.NextOffset != 7000 {
		t.Fatalf("%+v", l)
	}
	r := again.rest(7000)
	if r.data != numberedBytes(7000, 8000) || r.code() != 0 {
		t.Fatalf("%q", r.data)
	}
	info := a.do("GET", "/v1/commands/"+id.id, nil).object()
	if info["first_offset"] != 7000.0 || info["next_offset"] != 8000.0 {
		t.Fatal(info)
	}
}

func TestReaderComesBackByOffset(t *testing.T) {
	a := newAgent(t)
	first := a.start(sh(`i=0; while [ $i -lt 40 ]; do printf '%07d\n' $i; i=$((i+1)); sleep 0.01; done`))
	got, next := "", int64(0)
	reader := first
	for cut := 0; ; cut++ {
		l, ok := reader.next()
		if !ok {
			t.Fatal("the stream ended early")
		}
		if l.Type == "exit" {
			break
		}
		if l.Type != "stdout" {
			continue
		}
		if l.Offset != next {
			t.Fatalf("offset %d, expected %d", l.Offset, next)
		}
		got += string(l.Data)
		next += int64(len(l.Data))
		if cut%3 == 2 { // go away, and come back in the middle of a line
			reader.close()
			got, next = got[:len(got)-3], next-3
			reader = a.output(first.id, fmt.Sprintf("?from=%d", next))
		}
	}
	if want := numberedBytes(0, 320); got != want {
		t.Fatalf("%q", got)
	}
	// Afterwards too, from anywhere, to the very end.
	for _, from := range []int64{0, 1, 17, 319, 320} {
		r := a.output(first.id, fmt.Sprintf("?from=%d", from)).rest(from)
		if r.data != numberedBytes(from, 320) || r.exit == nil {
			t.Fatalf("from %d: %q", from, r.data)
		}
	}
}

func TestReadersAreIndependent(t *testing.T) {
	a := newAgent(t)
	r := a.start(with(sh("read go; seq -f %07.0f 0 9999"), "stdin", true))
	var wait sync.WaitGroup
	for i := 0; i < 8; i++ {
		other := a.output(r.id, "")
		wait.Add(1)
		go func() {
			defer wait.Done()
			if got := other.rest(0); got.data != numberedBytes(0, 80000) {
				t.Error("a reader missed something")
			}
		}()
	}
	activity := a.do("GET", a.internal+"/activity", nil).object()
	if activity["running_commands"] != 1.0 || activity["foreground_commands"] != 1.0 || activity["attached_readers"] != 9.0 {
		t.Fatal(activity)
	}
	a.do("POST", "/v1/commands/"+r.id+"/stdin", "go\n")
	wait.Wait()
	r.rest(0)
	a.eventually("nobody is attached", func() bool {
		activity := a.do("GET", a.internal+"/activity", nil).object()
		return activity["running_commands"] == 0.0 && activity["attached_readers"] == 0.0
	})
}

func TestOutputWithoutFollow(t *testing.T) {
	a := newAgent(t)
	r := a.start(sh("echo so far; sleep 100"))
	r.next()
	if got := a.output(r.id, "?follow=false").rest(0); got.data != "so far\n" || got.exit != nil {
		t.Fatalf("%+v", got)
	}
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?from=8&follow=false", nil), 422, "invalid_argument")
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?from=-1", nil), 422, "invalid_argument")
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?from=x", nil), 422, "invalid_argument")
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?follow=maybe", nil), 422, "invalid_argument")
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?from=%zz", nil), 400, "bad_request")
}

func TestReaderMayBeAheadOfARunningCommand(t *testing.T) {
	a := newAgent(t)
	r := a.start(with(sh("read x; printf 0123456789"), "stdin", true))
	a.do("POST", "/v1/commands/"+r.id+"/stdin?eof=true", "go\n")
	if got := a.output(r.id, "?from=4").rest(4); got.data != "456789" {
		t.Fatalf("%+v", got)
	}
	a.refused(a.do("GET", "/v1/commands/"+r.id+"/output?from=11", nil), 422, "invalid_argument")
}

func TestKeepalive(t *testing.T) {
	a := newAgent(t)
	a.public.keepalive = 30 * time.Millisecond
	r := a.start(map[string]any{"args": []string{"sleep", "100"}})
	for i := 0; i < 3; i++ {
		if l, ok := r.next(); !ok || l.Type != "keepalive" {
			t.Fatalf("%+v", l)
		}
	}
}

func TestClientGoingAwayKillsNothing(t *testing.T) {
	a := newAgent(t)
	file := filepath.Join(t.TempDir(), "done")
	r := a.start(with(sh("sleep 0.3; seq 1 100000; echo yes > "+file), "user", "root"))
	r.close()
	a.eventually("it runs on", func() bool { content, _ := os.ReadFile(file); return string(content) == "yes\n" })
	if got := a.output(r.id, "").rest(0); got.code() != 0 || !strings.HasSuffix(got.data, "\n100000\n") {
		t.Fatalf("%+v", got.exit)
	}
}

func TestDetached(t *testing.T) {
	a := newAgent(t)
	answer := a.do("POST", "/v1/commands", with(sh("echo hello; sleep 100"), "detach", true))
	id, _ := answer.object()["command_id"].(string)
	if answer.status != 201 || id == "" || answer.header.Get("X-Command-Id") != id || answer.object()["pid"] == nil {
		t.Fatal(answer)
	}
	r := a.output(id, "")
	if l, _ := r.next(); string(l.Data) != "hello\n" {
		t.Fatalf("%+v", l)
	}
	activity := a.do("GET", a.internal+"/activity", nil).object()
	if activity["running_commands"] != 1.0 || activity["foreground_commands"] != 0.0 {
		t.Fatal(activity)
	}
	list := a.do("GET", "/v1/commands", nil).object()["commands"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["detached"] != true {
		t.Fatal(list)
	}
}

func TestListShowsCommands(t *testing.T) {
	a := newAgent(t)
	if list := a.do("GET", "/v1/commands", nil); string(list.body) != "{\"commands\":[]}\n" {
		t.Fatal(list)
	}
	r := a.start(map[string]any{"cmd": "echo <&1>; exit 4", "env": map[string]string{"SECRET": "hush"}, "cwd": "/tmp"})
	r.rest(0)
	answer := a.do("GET", "/v1/commands", nil)
	info := answer.object()["commands"].([]any)[0].(map[string]any)
	for key, want := range map[string]any{"command_id": r.id, "pid": float64(r.pid), "cmd": "echo <&1>; exit 4", "args": nil,
		"user": "user", "cwd": "/tmp", "running": false, "timed_out": false, "signal": nil, "pty": false, "detached": false} {
		if info[key] != want {
			t.Errorf("%s: %v, want %v", key, info[key], want)
		}
	}
	if _, err := time.Parse(time.RFC3339Nano, info["started_at"].(string)); err != nil || info["code"] == nil {
		t.Error(info)
	}
	if bytes.Contains(answer.body, []byte("hush")) {
		t.Error("the environment is shown")
	}
}

func TestTimeoutKillsTheWholeSession(t *testing.T) {
	a := newAgent(t)
	// The second sleep is in a process group of its own, as a job of an interactive shell.
	r := a.start(with(map[string]any{"args": []string{"/bin/bash", "-c", "sleep 101 & echo $!; set -m; sleep 102 & echo $!; wait"}},
		"timeout_s", 0.4))
	res := r.rest(0)
	if !res.exit.TimedOut || res.exit.Signal == nil || *res.exit.Signal != "SIGKILL" || res.exit.DurationMS < 400 {
		t.Fatalf("%+v", res.exit)
	}
	pids := strings.Fields(res.data)
	if len(pids) != 2 {
		t.Fatalf("%q", res.data)
	}
	for _, text := range pids {
		pid, _ := strconv.Atoi(text)
		a.eventually("the child is dead", func() bool { return !alive(pid) })
	}
	if r := a.run(with(sh("exit 0"), "timeout_s", 60)); r.exit.TimedOut || r.code() != 0 {
		t.Fatalf("%+v", r.exit)
	}
	if info := a.do("GET", "/v1/commands/"+r.id, nil).object(); info["timed_out"] != true || info["signal"] != "SIGKILL" {
		t.Fatal(info)
	}
}

func TestGrandchildHoldingTheOutput(t *testing.T) {
	a := newAgent(t)
	file := filepath.Join(t.TempDir(), "survived")
	script := "(sleep 1; seq 1 100000 && echo ok > " + file + ") & echo started"
	begin := time.Now()
	r := a.run(with(sh(script), "user", "root"))
	if r.data != "started\n" || r.code() != 0 {
		t.Fatalf("%q %+v", r.data, r.exit)
	}
	if took := time.Since(begin); took > 900*time.Millisecond {
		t.Fatalf("the stream hung for %v", took)
	}
	// It writes more than a pipe holds, and neither blocks nor gets SIGPIPE.
	a.eventually("it lives on", func() bool { content, _ := os.ReadFile(file); return string(content) == "ok\n" })
}

func TestNothingWrittenBeforeTheEndIsLost(t *testing.T) {
	a := newAgent(t)
	var wait sync.WaitGroup
	for i := 0; i < 40; i++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			// The last 60 KB fit into the pipe: the process ends before they are read.
			r := a.run(sh("sleep 100 & seq -f %07.0f 0 19999; printf end >&2"))
			if r.of["stdout"] != numberedBytes(0, 160000) || r.of["stderr"] != "end" {
				t.Errorf("%d bytes", len(r.data))
			}
		}()
	}
	wait.Wait()
}

func TestDelete(t *testing.T) {
	a := newAgent(t)
	r := a.start(map[string]any{"args": []string{"/bin/bash", "-c", "set -m; sleep 103 & echo $!; wait"}})
	l, _ := r.next()
	child, _ := strconv.Atoi(strings.TrimSpace(string(l.Data)))
	if answer := a.do("DELETE", "/v1/commands/"+r.id, nil); answer.status != 204 || len(answer.body) != 0 {
		t.Fatal(answer)
	}
	if alive(r.pid) {
		t.Fatal("it still runs")
	}
	a.eventually("its job is dead", func() bool { return !alive(child) })
	if res := r.rest(int64(len(l.Data))); res.exit == nil || *res.exit.Signal != "SIGKILL" {
		t.Fatalf("a reader was not told: %+v", res.exit)
	}
	for _, request := range [][2]string{{"DELETE", ""}, {"GET", ""}, {"GET", "/output"}, {"POST", "/stdin"}, {"POST", "/signal"}, {"POST", "/resize"}} {
		a.refused(a.do(request[0], "/v1/commands/"+r.id+request[1], map[string]any{}), 404, "no_such_command")
	}
	done := a.start(sh("exit 0"))
	done.rest(0)
	if answer := a.do("DELETE", "/v1/commands/"+done.id, nil); answer.status != 204 {
		t.Fatal(answer)
	}
}

func TestUsersAndEnvironment(t *testing.T) {
	a := newAgent(t)
	home := filepath.Join(os.Getenv(inside), "home")
	r := a.run(with(sh(`echo "$(id -un) $(id -u) $(id -g) $(id -G) $HOME $USER $LOGNAME $SHELL $LANG [$TERM] $SANDBOX"; pwd`)))
	if want := "user 1000 1000 1000 1500 1600 " + home + " user user /bin/bash C.UTF-8 [] yes\n" + home + "\n"; r.data != want {
		t.Errorf("%q, want %q", r.data, want)
	}
	r = a.run(with(sh("id -un; id -G; pwd; echo $HOME"), "user", "homeless"))
	if r.data != "homeless\n1001 1600\n/\n/nonexistent\n" {
		t.Errorf("%q", r.data)
	}
	if r = a.run(with(sh("id -u; pwd"), "user", "root")); r.data != "0\n/root\n" {
		t.Errorf("%q", r.data)
	}
	if r = a.run(with(sh("id -u"), "user", "1001")); r.data != "1001\n" {
		t.Errorf("%q", r.data)
	}
	r = a.run(with(sh("echo $SANDBOX $EMPTY $LANG; pwd"), "env", map[string]string{"SANDBOX": "mine", "LANG": "C"}, "cwd", "/tmp"))
	if r.data != "mine C\n/tmp\n" {
		t.Errorf("%q", r.data)
	}
	must(os.MkdirAll(filepath.Join(home, "work"), 0o755))
	if r = a.run(with(sh("pwd"), "cwd", "work")); r.data != home+"/work\n" {
		t.Errorf("%q", r.data)
	}
	// The program is looked up in the child's PATH, not ours.
	bin := t.TempDir()
	must(os.Chmod(filepath.Dir(bin), 0o755))
	must(os.WriteFile(filepath.Join(bin, "greet"), []byte("#!/bin/sh\necho hello $1\n"), 0o755))
	greet := map[string]any{"args": []string{"greet", "you"}, "env": map[string]string{"PATH": bin + ":/bin:/usr/bin"}}
	if r = a.run(greet); r.data != "hello you\n" {
		t.Errorf("%q", r.data)
	}
	// Its own session and group, and none of our descriptors.
	r = a.run(sh(`read pid comm state ppid pgrp sid rest < /proc/self/stat; [ $pgrp = $$ ] && [ $sid = $$ ] && ls /proc/$$/fd`))
	if strings.Fields(r.data)[0] != "0" || len(strings.Fields(r.data)) > 4 { // a shell may have one of its own
		t.Errorf("%q", r.data)
	}
}

func TestCommandErrors(t *testing.T) {
	a := newAgent(t)
	post := func(body any) reply { return a.do("POST", "/v1/commands", body) }
	script := filepath.Join(t.TempDir(), "script")
	must(os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755))
	text := filepath.Join(t.TempDir(), "text")
	must(os.WriteFile(text, []byte("\x00\x01 no program"), 0o755))
	for _, c := range []struct {
		body   any
		status int
		code   string
		detail string
	}{
		{"{", 400, "bad_request", ""},
		{"", 400, "bad_request", ""},
		{"[]", 400, "bad_request", ""},
		{`{"cmd":"a"} x`, 400, "bad_request", ""},
		{"{\"cmd\":\"\xff\"}", 400, "bad_request", "UTF-8"},
		{`{"cmd":"` + strings.Repeat("x", 1<<20) + `"}`, 413, "body_too_large", ""},
		{map[string]any{}, 422, "invalid_argument", "cmd"},
		{map[string]any{"cmd": 5}, 422, "invalid_argument", "cmd"},
		{map[string]any{"cmd": "a", "args": []string{"b"}}, 422, "invalid_argument", "args"},
		{map[string]any{"args": []string{}}, 422, "invalid_argument", "cmd"},
		{map[string]any{"args": []string{""}}, 422, "invalid_argument", "args"},
		{map[string]any{"args": []any{"a", 1}}, 422, "invalid_argument", "args"},
		{map[string]any{"cmd": "a\x00b"}, 422, "invalid_argument", "cmd"},
		{map[string]any{"args": []string{"a", "\x00"}}, 422, "invalid_argument", "args"},
		{map[string]any{"cmd": "a", "cwd": "\x00"}, 422, "invalid_argument", "cwd"},
		{map[string]any{"cmd": "a", "user": "\x00"}, 422, "invalid_argument", "user"},
		{map[string]any{"cmd": "a", "env": map[string]string{"A": "\x00"}}, 422, "invalid_argument", "env"},
		{map[string]any{"cmd": "a", "env": map[string]string{"A=B": ""}}, 422, "invalid_argument", "env"},
		{map[string]any{"cmd": "a", "env": map[string]string{"": ""}}, 422, "invalid_argument", "env"},
		{map[string]any{"cmd": "a", "env": []string{}}, 422, "invalid_argument", "env"},
		{map[string]any{"cmd": strings.Repeat("x", 128<<10)}, 422, "invalid_argument", "cmd"},
		{map[string]any{"cmd": "a", "timeout_s": 0}, 422, "invalid_argument", "timeout_s"},
		{map[string]any{"cmd": "a", "timeout_s": -1}, 422, "invalid_argument", "timeout_s"},
		{map[string]any{"cmd": "a", "timeout_s": "1"}, 422, "invalid_argument", "timeout_s"},
		{map[string]any{"cmd": "a", "output_limit_bytes": 0}, 422, "invalid_argument", "output_limit_bytes"},
		{map[string]any{"cmd": "a", "output_limit_bytes": 64<<20 + 1}, 422, "invalid_argument", "output_limit_bytes"},
		{map[string]any{"cmd": "a", "output_limit_bytes": 1.5}, 422, "invalid_argument", "output_limit_bytes"},
		{map[string]any{"cmd": "a", "pty": map[string]int{"cols": 80}}, 422, "invalid_argument", "pty"},
		{map[string]any{"cmd": "a", "pty": map[string]int{"cols": 80, "rows": 100000}}, 422, "invalid_argument", "pty"},
		{map[string]any{"cmd": "a", "user": "ghost"}, 422, "no_such_user", "ghost"},
		{map[string]any{"cmd": "a", "cwd": "/no/such"}, 422, "no_such_directory", "/no/such"},
		{map[string]any{"cmd": "a", "cwd": "/etc/passwd"}, 422, "no_such_directory", "/etc/passwd"},
		{map[string]any{"args": []string{"no-such-program"}}, 422, "command_not_found", "no-such-program"},
		{map[string]any{"args": []string{"/no/such/program"}}, 422, "command_not_found", ""},
		{map[string]any{"args": []string{script}, "user": "root"}, 422, "command_not_found", "interpreter"},
		{map[string]any{"args": []string{text}, "user": "root"}, 422, "not_executable", ""},
		{map[string]any{"args": []string{"/etc/passwd"}}, 422, "permission_denied", "user"},
		{map[string]any{"args": []string{"true"}, "cwd": "/root"}, 422, "permission_denied", "/root"},
	} {
		if detail := a.refused(post(c.body), c.status, c.code); !strings.Contains(detail, c.detail) {
			t.Errorf("%v: the detail does not name %q: %s", c.body, c.detail, detail)
		}
	}
	// A shell reports for itself; unknown fields are for newer agents.
	if r := a.run(map[string]any{"cmd": "no-such-program", "shiny": true, "timeout_s": nil, "pty": nil}); r.code() != 127 {
		t.Errorf("%+v", r.exit)
	}
	r := a.start(map[string]any{"args": []string{"sleep", "100"}})
	for _, signal := range []any{nil, "", "NOPE", 0, 65, -1, 1.5, "SIG", true} {
		a.refused(a.do("POST", "/v1/commands/"+r.id+"/signal", map[string]any{"signal": signal}), 422, "invalid_argument")
	}
	if list := a.do("GET", "/v1/commands", nil).object()["commands"].([]any); len(list) != 2 {
		t.Errorf("refused commands are listed: %d", len(list))
	}
}
