package api

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestProcessStreamsOutputAndEnd(t *testing.T) {
	a := newAgent(t)
	for script, want := range map[string]map[string]any{
		"echo out; echo err >&2":             {"exitCode": 0.0, "exited": true, "status": "exit status 0"},
		"echo out; echo err >&2; exit 3":     {"exitCode": 3.0, "exited": true, "status": "exit status 3", "error": "exit status 3"},
		"echo out; echo err >&2; kill -9 $$": {"exitCode": -1.0, "exited": false, "status": "signal: killed", "error": "signal: killed"},
	} {
		p := a.begin("", shell(script)).rest()
		if p.of["stdout"] != "out\n" || p.of["stderr"] != "err\n" || p.fail != "" || fmt.Sprint(p.end) != fmt.Sprint(want) {
			t.Errorf("%s: %+v", script, p)
		}
	}
}

func TestProcessBeginsAsItsUser(t *testing.T) {
	a := newAgent(t)
	a.init(map[string]any{"template_id": "base", "env": map[string]string{"A": "sandbox", "B": "sandbox"}})
	home := os.Getenv(inside) + "/home"
	script := `echo $(id -un):$USER:$LOGNAME:$HOME:$PWD:$A:$B:$E2B_SANDBOX:$E2B_SANDBOX_ID:$E2B_TEMPLATE_ID`
	rest := ":sandbox:request:true:sbx_test:base\n"
	envs := map[string]string{"B": "request"}
	for user, want := range map[string]string{
		"": "user:user:user:" + home + ":" + home + rest, "user": "user:user:user:" + home + ":" + home + rest, "root": "root:root:root:/root:/root" + rest,
	} {
		if got := a.begin(user, shell(script, "envs", envs)).rest().of["stdout"]; got != want {
			t.Errorf("%s: %s", user, got)
		}
	}
	for cwd, want := range map[string]string{"/tmp": "/tmp", "~": home, "": home, ".": home} {
		if got := a.begin("", shell("pwd", "cwd", cwd)).rest().of["stdout"]; got != want+"\n" {
			t.Errorf("%s: %s", cwd, got)
		}
	}
	if p := a.openCall("", "process.Process/Start", shell("true", "cwd", "/nope")).rest(); p.fail != "invalid_argument: cwd '/nope' does not exist" {
		t.Error(p)
	}
	if p := a.openCall("ghost", "process.Process/Start", shell("true")).rest(); p.fail != "unauthenticated: invalid username: 'ghost'" {
		t.Error(p)
	}
	missing := map[string]any{"process": map[string]any{"cmd": "/no/such/program"}}
	if p := a.openCall("", "process.Process/Start", missing).rest(); !strings.HasPrefix(p.fail, "invalid_argument: ") {
		t.Error(p)
	}
}

func TestTemplateSaysWhoAndWhere(t *testing.T) {
	a := newAgent(t)
	folder := t.TempDir()
	templateSays(t, `{"user": "root", "workdir": "`+folder+`"}`)
	if got := a.begin("", shell("id -un; pwd")).rest().of["stdout"]; got != "root\n"+folder+"\n" {
		t.Error(got)
	}
	if r := a.run(sh("id -un; pwd")); r.data != "root\n"+folder+"\n" {
		t.Error(r.data)
	}
}

func TestDeadlineOfStartKillsTheProcess(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("sleep 1000 & echo $!; wait"), "Connect-Timeout-Ms", "700")
	child, err := strconv.Atoi(strings.TrimSpace(stream.until("\n")))
	must(err)
	other := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	if p := stream.rest(); !strings.HasPrefix(p.fail, "deadline_exceeded: ") || p.end != nil {
		t.Errorf("%+v", p)
	}
	if p := other.rest(); p.end["status"] != "signal: killed" {
		t.Errorf("%+v", p)
	}
	a.eventually("all of it is dead", func() bool { return !alive(stream.pid) && !alive(child) })
	// Who only looks on ends nothing.
	stream = a.begin("", shell("read x; echo $x"))
	if p := a.openCall("", "process.Process/Connect", pid(stream.pid), "Connect-Timeout-Ms", "50").begun().rest(); !strings.HasPrefix(p.fail, "deadline_exceeded") {
		t.Errorf("%+v", p)
	}
	a.call("", "process.Process/SendInput", map[string]any{"process": map[string]any{"pid": stream.pid}, "input": map[string]any{"stdin": "b2sK"}})
	if p := stream.rest(); p.of["stdout"] != "ok\n" {
		t.Errorf("%+v", p)
	}
}

func TestProcessOutlivesItsClient(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("echo before; read x; echo $x; exit 5", "tag", "mine"))
	stream.until("before\n")
	stream.body.Close()
	var infos []any
	a.eventually("nobody reads", func() bool { return a.activity()["attached_readers"] == 0.0 })
	infos = a.call("", "process.Process/List", nil).object()["processes"].([]any)
	info := infos[0].(map[string]any)
	if len(infos) != 1 || info["tag"] != "mine" || info["pid"] != float64(stream.pid) || info["config"].(map[string]any)["cmd"] != "/bin/sh" {
		t.Fatal(infos)
	}
	first := a.openCall("", "process.Process/Connect", map[string]any{"process": map[string]any{"tag": "mine"}}).begun()
	second := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	input := map[string]any{"process": map[string]any{"tag": "mine"}, "input": map[string]any{"stdin": "aGkK"}}
	if r := a.call("", "process.Process/SendInput", input); r.status != 200 || string(r.body) != "{}" {
		t.Fatal(r)
	}
	for _, one := range []*tail{first, second} {
		if p := one.rest(); p.of["stdout"] != "hi\n" || p.end["exitCode"] != 5.0 {
			t.Errorf("%+v", p)
		}
	}
	// For a while the end can still be had, and nothing else.
	if p := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun().rest(); p.of["stdout"] != "" || p.end["exitCode"] != 5.0 {
		t.Errorf("%+v", p)
	}
	a.failed(a.call("", "process.Process/SendInput", input), 404, "not_found")
	kill := map[string]any{"process": map[string]any{"pid": stream.pid}, "signal": "SIGNAL_SIGKILL"}
	if detail := a.failed(a.call("", "process.Process/SendSignal", kill), 404, "not_found"); detail != fmt.Sprintf("process with pid %d not found", stream.pid) {
		t.Error(detail)
	}
	if p := a.openCall("", "process.Process/Connect", pid(1<<30)).rest(); p.fail != "not_found: process with pid 1073741824 not found" {
		t.Error(p)
	}
}

// E2B's Connect has no offsets: the agent remembers what it has sent.
func TestConnectGoesOnWhereTheClientLeft(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("for i in 1 2 3; do echo $i; read x; done; exit 7"))
	goOn := map[string]any{"process": map[string]any{"pid": stream.pid}, "input": map[string]any{"stdin": "Cg=="}}
	printed := func(all string) {
		a.eventually("printed "+all, func() bool {
			output := a.do("GET", "/v1/commands", nil).object()["commands"].([]any)[0].(map[string]any)
			return output["next_offset"] == float64(len(all))
		})
	}
	leave := func(stream *tail) {
		stream.body.Close()
		a.eventually("nobody reads", func() bool { return a.activity()["attached_readers"] == 0.0 })
	}
	stream.until("1\n")
	leave(stream)
	a.call("", "process.Process/SendInput", goOn)
	printed("1\n2\n")
	back := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	if got := back.until("2\n"); got != "2\n" {
		t.Errorf("%q", got)
	}
	// Who comes while another listens hears what comes next, as with E2B.
	second := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	a.call("", "process.Process/SendInput", goOn)
	for _, one := range []*tail{back, second} {
		if got := one.until("3\n"); got != "3\n" {
			t.Errorf("%q", got)
		}
	}
	back.body.Close()
	leave(second)
	// The end is there for who missed it, and can be had again for a while.
	a.call("", "process.Process/SendInput", goOn)
	a.eventually("it has ended", func() bool { return len(a.call("", "process.Process/List", nil).object()["processes"].([]any)) == 0 })
	for i := 0; i < 2; i++ {
		if p := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun().rest(); p.of["stdout"] != "" || p.end["exitCode"] != 7.0 {
			t.Errorf("%+v", p)
		}
	}
}

func TestBothProtocolsSeeOneTable(t *testing.T) {
	a := newAgent(t)
	ours := a.begin("", shell("read x"))
	theirs := a.start(map[string]any{"cmd": "read x; exit 4", "stdin": true})
	if list := a.do("GET", "/v1/commands", nil).object()["commands"].([]any); len(list) != 2 || list[0].(map[string]any)["pid"] != float64(ours.pid) {
		t.Error(list)
	}
	if list := a.call("", "process.Process/List", nil).object()["processes"].([]any); len(list) != 2 {
		t.Error(list)
	}
	connected := a.openCall("", "process.Process/Connect", pid(theirs.pid)).begun()
	a.do("POST", "/v1/commands/"+theirs.id+"/stdin", "x\n")
	if p := connected.rest(); p.end["exitCode"] != 4.0 {
		t.Errorf("%+v", p)
	}
}

func TestSignalsReachTheWholeProcess(t *testing.T) {
	a := newAgent(t)
	for signal, status := range map[any]string{"SIGNAL_SIGTERM": "signal: terminated", "SIGNAL_SIGKILL": "signal: killed", 9: "signal: killed"} {
		stream := a.begin("", shell("sleep 1000 & echo $!; wait"))
		child, err := strconv.Atoi(strings.TrimSpace(stream.until("\n")))
		must(err)
		if r := a.call("", "process.Process/SendSignal", map[string]any{"process": map[string]any{"pid": stream.pid}, "signal": signal}); r.status != 200 {
			t.Fatal(r)
		}
		if p := stream.rest(); p.end["status"] != status {
			t.Errorf("%v: %+v", signal, p)
		}
		a.eventually("the child is dead", func() bool { return !alive(child) })
	}
	stream := a.begin("", shell("read x"))
	a.failed(a.call("", "process.Process/SendSignal", pid(stream.pid)), 501, "unimplemented")
	a.failed(a.call("", "process.Process/SendSignal", map[string]any{}), 400, "invalid_argument")
}

func TestStdinIsFedAndClosed(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("cat; echo end"))
	var messages []any
	messages = append(messages, map[string]any{"start": pid(stream.pid)})
	want := ""
	for i := 0; i < 200; i++ {
		line := fmt.Sprintf("%04d%s\n", i, strings.Repeat("x", 1000))
		want += line
		messages = append(messages, map[string]any{"data": map[string]any{"input": map[string]any{"stdin": []byte(line)}}}, map[string]any{"keepalive": map[string]any{}})
	}
	fed := a.openStream("process.Process/StreamInput", io.MultiReader(strings.NewReader(framed(messages...))))
	if message, last := fed.next(); last || len(message) != 0 {
		t.Fatal(message)
	}
	if r := a.call("", "process.Process/CloseStdin", pid(stream.pid)); r.status != 200 {
		t.Fatal(r)
	}
	if p := stream.rest(); p.of["stdout"] != want+"end\n" {
		t.Errorf("%d bytes, want %d", len(p.of["stdout"]), len(want))
	}
	none := a.begin("", shell("cat; read x; sleep 1000", "stdin", false))
	a.failed(a.call("", "process.Process/SendInput", map[string]any{"process": map[string]any{"pid": none.pid}, "input": map[string]any{"stdin": "eA=="}}), 400, "failed_precondition")
	refused := a.openStream("process.Process/StreamInput", strings.NewReader(framed(map[string]any{"start": pid(1 << 30)})))
	if name, failure := refused.event(); name != "error" || failure["code"] != "not_found" {
		t.Error(name, failure)
	}
}

func TestProcessWithATerminal(t *testing.T) {
	a := newAgent(t)
	pty := map[string]any{"size": map[string]any{"cols": 100, "rows": 30}}
	stream := a.begin("", shell("stty -echo; stty size; read x; stty size; read x", "pty", pty))
	stream.until("30 100\r\n")
	selected := map[string]any{"pid": stream.pid}
	input := map[string]any{"process": selected, "input": map[string]any{"pty": "eAo="}}
	if r := a.call("", "process.Process/Update", map[string]any{"process": selected, "pty": map[string]any{"size": map[string]any{"cols": 90, "rows": 20}}}); r.status != 200 {
		t.Fatal(r)
	}
	a.call("", "process.Process/SendInput", input)
	stream.until("20 90\r\n")
	a.failed(a.call("", "process.Process/SendInput", map[string]any{"process": selected, "input": map[string]any{"stdin": "eAo="}}), 400, "failed_precondition")
	a.failed(a.call("", "process.Process/CloseStdin", map[string]any{"process": selected}), 400, "failed_precondition")
	a.call("", "process.Process/SendInput", input)
	if p := stream.rest(); p.end["exitCode"] != 0.0 {
		t.Errorf("%+v", p)
	}
	plain := a.begin("", shell("read x"))
	a.failed(a.call("", "process.Process/Update", map[string]any{"process": map[string]any{"pid": plain.pid}, "pty": pty}), 400, "failed_precondition")
}

func TestKeepalivesComeWhenAskedFor(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("read x"), "Keepalive-Ping-Interval", "1")
	if name, _ := stream.event(); name != "keepalive" {
		t.Error(name)
	}
	watching := a.openCall("", "filesystem.Filesystem/WatchDir", map[string]any{"path": t.TempDir()}, "Keepalive-Ping-Interval", "1")
	watching.next()
	if message, _ := watching.next(); message["keepalive"] == nil {
		t.Error(message)
	}
}

// printed is a command that prints n bytes.
func printed(n int) map[string]any { return shell(fmt.Sprintf("head -c %d /dev/zero", n)) }

func (t *tail) count() (bytes int, p process) {
	p = t.rest()
	return len(p.of["stdout"]), p
}

// More output than is kept, and a client that does not read for a while.
func TestNothingIsLostToASlowClient(t *testing.T) {
	a := newAgent(t)
	const much = 40 << 20
	stream := a.begin("", printed(much))
	held := 0
	for began := time.Now(); held < 3; time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 30*time.Second {
			t.Fatal("the output is never held up")
		}
		c := a.public.commands.List()[0]
		if _, before := c.Output.Bounds(); before > 4<<20 && c.Exit() == nil {
			held++
		}
	}
	if n, p := stream.count(); n != much || p.end == nil {
		t.Errorf("%d bytes, %s", n, p.fail)
	}
}

// A client that never reads holds up neither the process nor another client.
func TestSlowClientBlocksNobody(t *testing.T) {
	a := newAgent(t)
	stream := a.begin("", shell("read x; head -c 60000000 /dev/zero"))
	stuck := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	reading := a.openCall("", "process.Process/Connect", pid(stream.pid)).begun()
	stream.body.Close()
	a.call("", "process.Process/SendInput", map[string]any{"process": map[string]any{"pid": stream.pid}, "input": map[string]any{"stdin": "Cg=="}})
	if n, p := reading.count(); n != 60_000_000 || p.end == nil {
		t.Errorf("%d bytes, %s", n, p.fail)
	}
	if p := stuck.rest(); !strings.HasPrefix(p.fail, "data_loss: ") {
		t.Errorf("%v %s", p.end, p.fail)
	}
}
