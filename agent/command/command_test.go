package command

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"space/agent/fault"
	"space/agent/freezer"
	"space/agent/reaper"
)

var testReaper *reaper.Reaper

func TestMain(m *testing.M) {
	testReaper = reaper.New()
	os.Exit(m.Run())
}

func table(t *testing.T) *Table {
	table := NewTable(testReaper, &freezer.Group{}, func() map[string]string { return nil })
	t.Cleanup(func() {
		for _, c := range table.List() {
			c.Kill()
		}
	})
	return table
}

func startIn(t *testing.T, table *Table, script string) *Command {
	t.Helper()
	c, err := table.Start(context.Background(), Spec{Args: []string{"/bin/sh", "-c", script}, User: "root", OutputLimit: MaxOutputLimit})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func known(table *Table, c *Command) bool {
	_, err := table.Get(c.ID)
	return err == nil
}

func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never came true: " + what)
		}
	}
}

func TestFinishedGoFirstWhenMemoryIsShort(t *testing.T) {
	table := table(t)
	table.budget = 1 << 20
	running := startIn(t, table, "head -c 100000 /dev/zero; sleep 100")
	var finished []*Command
	for i := 0; i < 5; i++ {
		c := startIn(t, table, "head -c 300000 /dev/zero")
		<-c.Finished()
		finished = append(finished, c)
	}
	eventually(t, "the oldest are evicted", func() bool { return !known(table, finished[1]) })
	if known(table, finished[0]) || !known(table, finished[4]) || !known(table, running) {
		t.Error("the wrong ones were evicted")
	}
	if first, next := running.Output.Bounds(); first != 0 || next != 100000 {
		t.Errorf("the running one lost output: %d to %d", first, next)
	}
}

func TestLongCommandLinesCount(t *testing.T) {
	table := table(t)
	table.budget = 1 << 20
	first := startIn(t, table, "true")
	<-first.Finished()
	for i := 0; i < 12; i++ {
		<-startIn(t, table, "true "+strings.Repeat("x", 100_000)).Finished()
	}
	eventually(t, "the oldest is evicted", func() bool { return !known(table, first) })
}

func TestRunningCommandsShareTheBudget(t *testing.T) {
	table := table(t)
	table.budget = 1 << 20
	small := startIn(t, table, "echo small; sleep 100")
	var large []*Command
	for i := 0; i < 3; i++ {
		large = append(large, startIn(t, table, "head -c 5000000 /dev/zero; sleep 100"))
	}
	total := func() (sum int64) {
		for _, c := range table.List() {
			sum += c.Output.Cost()
		}
		return sum
	}
	for _, c := range large {
		eventually(t, "all is read", func() bool { _, next := c.Output.Bounds(); return next == 5000000 })
		if first, _ := c.Output.Bounds(); first == 0 {
			t.Error("nothing was given up")
		}
	}
	if total() > table.budget+3*64<<10 {
		t.Errorf("%d bytes are held", total())
	}
	if first, next := small.Output.Bounds(); first != 0 || next != 6 {
		t.Error("the small one paid")
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{`"SIGINT"`: 2, `"int"`: 2, `9`: 9, `"15"`: 15, `"SIG34"`: 34, `64`: 64, `"sigwinch"`: 28} {
		if got, err := ParseSignal(json.RawMessage(text)); err != nil || got != want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, text := range []string{``, `null`, `0`, `65`, `""`, `"SIG"`, `"SIGSIGINT"`, `2.0`, `[2]`, `"\u0000"`, `true`} {
		if _, err := ParseSignal(json.RawMessage(text)); err == nil || fault.From(err).Status != 422 {
			t.Errorf("%s: %v", text, err)
		}
	}
	for n := syscall.Signal(1); n <= maxSignal; n++ {
		if got, err := ParseSignal(json.RawMessage(`"` + SignalName(n) + `"`)); err != nil || got != n {
			t.Errorf("%s does not come back: %v %v", SignalName(n), got, err)
		}
	}
}

func TestSeconds(t *testing.T) {
	for s, want := range map[float64]time.Duration{1.5: 1500 * time.Millisecond, 1e-12: 1, 1e300: 0, 3600: time.Hour} {
		if got := Seconds(s); got != want {
			t.Errorf("%g: %v", s, got)
		}
	}
}

func TestStartFaultsSayWhatToDo(t *testing.T) {
	l := &launch{argv: []string{"prog"}, dir: "/"}
	for errno, code := range map[syscall.Errno]string{syscall.ENOENT: "command_not_found", syscall.EACCES: "permission_denied",
		syscall.EAGAIN: "out_of_resources", syscall.ENOMEM: "out_of_resources", syscall.EMFILE: "out_of_resources",
		syscall.E2BIG: "invalid_argument", syscall.ENOEXEC: "not_executable", syscall.EIO: "cannot_start"} {
		if f := fault.From(startFault(errno, l)); f.Code != code || strings.Contains(f.Detail, "%!") {
			t.Errorf("%v: %+v", errno, f)
		}
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	table := table(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run := func() {
		for _, s := range []Spec{
			{Args: []string{"true"}}, {Args: []string{"true"}, Stdin: true}, {Args: []string{"true"}, PTY: &Size{80, 24}},
			{Args: []string{"/no/such"}}, {Args: []string{"/no/such"}, Stdin: true}, {Args: []string{"/no/such"}, PTY: &Size{80, 24}},
		} {
			s.User, s.OutputLimit = "root", 100
			if c, err := table.Start(context.Background(), s); err == nil {
				<-c.Finished()
			}
		}
	}
	run()
	before := count()
	for i := 0; i < 20; i++ {
		run()
	}
	eventually(t, "all are closed", func() bool { return count() <= before })
}
