package freezer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"space/agent/fault"
)

// groupDir is where this machine shows its freezer groups; the tests look there.
const groupDir = "/sys/fs/cgroup/freezer"

var groups int64

// newGroup is a real group, which is emptied and removed at the end.
func newGroup(t *testing.T) (g *Group, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(groupDir, "tasks")); err != nil {
		t.Skip("this machine shows no freezer hierarchy")
	}
	name := fmt.Sprintf("freezer-test-%d-%d", os.Getpid(), atomic.AddInt64(&groups, 1))
	g, err := Open(filepath.Join(t.TempDir(), "place"), name)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(groupDir, name)
	t.Cleanup(func() {
		freeze(t, g) // who cannot fork cannot get away
		for _, pid := range members(t, dir) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		g.Thaw(true)
		eventually(t, "the group is empty", func() bool { return os.Remove(dir) == nil })
	})
	return g, dir
}

// One group stays frozen, or each freeze would have the kernel rewrite itself.
func TestAnEmptyGroupStaysFrozen(t *testing.T) {
	if _, err := os.Stat(filepath.Join(groupDir, "tasks")); err != nil {
		t.Skip("this machine shows no freezer hierarchy")
	}
	name := fmt.Sprintf("freezer-test-%d-still", os.Getpid())
	dir := filepath.Join(groupDir, name)
	t.Cleanup(func() { os.Remove(dir) })
	for again := 0; again < 2; again++ {
		if err := KeepFreezing(filepath.Join(t.TempDir(), "place"), name); err != nil {
			t.Fatal(err)
		}
		state, err := os.ReadFile(filepath.Join(dir, "freezer.state"))
		if err != nil || strings.TrimSpace(string(state)) != "FROZEN" {
			t.Fatalf("the group is %q, %v", state, err)
		}
	}
}

func eventually(t *testing.T, what string, fact func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !fact(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never came true: " + what)
		}
	}
}

func members(t *testing.T, dir string) (pids []int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(text)) {
		pid, _ := strconv.Atoi(field)
		pids = append(pids, pid)
	}
	return pids
}

// What is started here runs until it is stopped, and at the latest until the
// test is no more: a test that was killed must leave no busy loops behind.
func init() { os.Setenv("TEST", strconv.Itoa(os.Getpid())) }

func background(t *testing.T, g *Group, script string) *exec.Cmd {
	t.Helper()
	command := exec.Command("/bin/sh", "-c", script)
	if err := g.Start(context.Background(), command.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Thaw(false); command.Process.Kill(); command.Wait() })
	return command
}

func freeze(t *testing.T, g *Group) {
	t.Helper()
	if err := g.Freeze(context.Background(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
}

// stands checks that a counter that programs move does not move any more.
func stands(t *testing.T, file string) {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	time.Sleep(50 * time.Millisecond)
	if after := size(); after != before {
		t.Fatalf("programs ran: %d became %d", before, after)
	}
}

func grows(t *testing.T, file string) {
	t.Helper()
	var before int64 = -1
	eventually(t, "programs run", func() bool {
		info, err := os.Stat(file)
		if err != nil {
			return false
		}
		if before < 0 {
			before = info.Size()
		}
		return info.Size() > before
	})
}

func TestWhateverIsStartedStops(t *testing.T) {
	for name, script := range map[string]string{
		"busy":         "while [ -d /proc/$TEST ]; do printf x >> $OUT; done",
		"double fork":  "(( while [ -d /proc/$TEST ]; do printf x >> $OUT; done ) & ) & exit",
		"own session":  "setsid setsid sh -c 'while [ -d /proc/$TEST ]; do printf x >> $OUT; done' & exit",
		"own children": "while [ -d /proc/$TEST ]; do /bin/echo x >> $OUT; done",
		"stopped":      "sh -c 'kill -STOP $$' & while [ -d /proc/$TEST ]; do printf x >> $OUT; done",
		"tree":         "for i in 1 2 3; do sh -c 'for j in 1 2 3; do setsid sh -c \"while [ -d /proc/$TEST ]; do /bin/echo x >> $OUT; done\" & done; wait' & done; wait",
	} {
		t.Run(name, func(t *testing.T) {
			g, dir := newGroup(t)
			out := filepath.Join(t.TempDir(), "out")
			t.Setenv("OUT", out)
			background(t, g, script)
			for round := 0; round < 3; round++ {
				grows(t, out)
				freeze(t, g)
				if !g.Frozen() || len(members(t, dir)) == 0 {
					t.Fatal("nobody is frozen")
				}
				stands(t, out)
				if err := g.Thaw(false); err != nil {
					t.Fatal(err)
				}
			}
			grows(t, out)
		})
	}
}

// A fork bomb, bounded by a limit to its user's processes, is stopped as a whole.
func TestForkBombStops(t *testing.T) {
	g, dir := newGroup(t)
	out := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(out, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	os.Chmod(out, 0o666)
	for path := filepath.Dir(out); path != "/tmp" && path != "/"; path = filepath.Dir(path) {
		os.Chmod(path, 0o755)
	}
	t.Setenv("OUT", out)
	bomb := exec.Command("setpriv", "--reuid=64321", "--regid=64321", "--clear-groups", "prlimit", "--nproc=40:40", "/bin/bash", "-c",
		"while [ -d /proc/$TEST ]; do (printf x >> $OUT; sleep 0.01 & sleep 0.01) & (printf x >> $OUT) & done 2>/dev/null")
	if err := g.Start(context.Background(), bomb.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Thaw(false); bomb.Process.Kill(); bomb.Wait() })
	for round := 0; round < 5; round++ {
		grows(t, out)
		freeze(t, g)
		who := members(t, dir)
		stands(t, out)
		if again := members(t, dir); len(again) > len(who) {
			t.Fatalf("%d became %d", len(who), len(again))
		}
		if err := g.Thaw(false); err != nil {
			t.Fatal(err)
		}
	}
}

// However starts and freezes fall together: while frozen, no child runs, and
// no thread of the agent is in the group.
func TestStartsRaceWithFreezes(t *testing.T) {
	g, dir := newGroup(t)
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv("OUT", out)
	stop := make(chan struct{})
	var starters sync.WaitGroup
	var started atomic.Int64
	for i := 0; i < 4; i++ {
		starters.Add(1)
		go func() {
			defer starters.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				command := exec.Command("/bin/sh", "-c", "printf x >> $OUT")
				if err := g.Start(context.Background(), command.Start); err != nil {
					t.Error(err)
					return
				}
				started.Add(1)
				command.Wait()
			}
		}()
	}
	for round := 0; round < 30; round++ {
		before := started.Load()
		eventually(t, "programs start", func() bool { return started.Load() > before })
		freeze(t, g)
		at := started.Load()
		for _, pid := range members(t, dir) {
			if pid == os.Getpid() {
				t.Fatal("the agent froze a thread of its own")
			}
		}
		if round%10 == 0 {
			stands(t, out)
		}
		// Starts that had come back from the fork may still be counted.
		if late := started.Load() - at; late > 4 {
			t.Fatalf("%d were started while frozen", late)
		}
		if err := g.Thaw(false); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	starters.Wait()
	info, err := os.Stat(out)
	if err != nil || info.Size() != started.Load() {
		t.Fatalf("%d were started, %v ran", started.Load(), info.Size())
	}
}

// The runtime must not be in the group: collecting garbage stops all threads,
// and would wait for one that the kernel has stopped.
func TestTheAgentGoesOn(t *testing.T) {
	g, dir := newGroup(t)
	background(t, g, "sleep 100")
	for i := 0; i < 20; i++ {
		background(t, g, "exit")
	}
	freeze(t, g)
	var busy sync.WaitGroup
	for i := 0; i < 20; i++ { // makes new threads
		busy.Add(1)
		go func() {
			defer busy.Done()
			syscall.Nanosleep(&syscall.Timespec{Nsec: 20e6}, nil)
		}()
	}
	busy.Wait()
	tasks, err := os.ReadFile(filepath.Join(dir, "tasks"))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(tasks)) {
		if _, err := os.Stat("/proc/self/task/" + field); err == nil {
			t.Fatalf("thread %s is in the group", field)
		}
	}
}

func TestStartWaitsWhileFrozen(t *testing.T) {
	g, _ := newGroup(t)
	start := func(ctx context.Context) chan error {
		done := make(chan error, 1)
		go func() {
			done <- g.Start(ctx, func() error { return errors.New("began") })
		}()
		return done
	}
	waits := func(done chan error) {
		t.Helper()
		select {
		case err := <-done:
			t.Fatal("did not wait:", err)
		case <-time.After(30 * time.Millisecond):
		}
	}
	freeze(t, g)
	kept := start(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	left := start(ctx)
	waits(kept)
	cancel()
	if err := <-left; err != context.Canceled {
		t.Error(err)
	}
	g.Thaw(false)
	if err := <-kept; err == nil || err.Error() != "began" {
		t.Error(err)
	}
	freeze(t, g)
	dropped := start(context.Background())
	waits(dropped)
	g.Thaw(true)
	if err := <-dropped; fault.From(err).Code != "not_started" || fault.From(err).Status != 503 {
		t.Error(err)
	}
	if err := <-start(context.Background()); err.Error() != "began" {
		t.Error(err)
	}
}

// A fork that does not come back holds up the freeze, not for ever, and the
// programs that were to be stopped go on.
func TestWhatCannotBeFrozenGoesOn(t *testing.T) {
	g, _ := newGroup(t)
	out := filepath.Join(t.TempDir(), "out")
	t.Setenv("OUT", out)
	background(t, g, "while [ -d /proc/$TEST ]; do printf x >> $OUT; done")
	grows(t, out)
	hang, hung := make(chan struct{}), make(chan struct{})
	go g.Start(context.Background(), func() error { close(hung); <-hang; return nil })
	<-hung
	if err := g.Freeze(context.Background(), 50*time.Millisecond); err != ErrBusy || g.Frozen() {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(context.Background())
	leave()
	if err := g.Freeze(gone, time.Hour); err != ErrBusy || g.Frozen() {
		t.Fatal(err)
	}
	grows(t, out)
	close(hang)
	freeze(t, g)
}

func TestZeroGroupFreezesNothing(t *testing.T) {
	g := &Group{}
	if g.Available() || g.Freeze(context.Background(), time.Second) != nil || g.Frozen() || g.Thaw(true) != nil {
		t.Error("a group without freezer claims to have one")
	}
	if err := g.Start(context.Background(), func() error { return errors.New("ran") }); err.Error() != "ran" {
		t.Error(err)
	}
}

// The hierarchy is not left where programs in the sandbox would see it.
func TestNothingStaysMounted(t *testing.T) {
	newGroup(t)
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), "/place ") {
		t.Error("still mounted")
	}
}

// ext4 is a file system of its own, in a file.
func ext4(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "fs")
	os.Mkdir(point, 0o755)
	for _, argv := range [][]string{
		{"mke2fs", "-q", "-t", "ext4", image, "16M"}, {"mount", "-o", "loop", image, point},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", point).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	})
	return point
}

func TestFileSystemFreezes(t *testing.T) {
	point := ext4(t)
	f, err := OpenFileSystem(point)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(f.dir) })
	for round := 0; round < 2; round++ {
		for again := 0; again < 2; again++ { // frozen is frozen
			if err := f.Freeze(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		written := make(chan error, 1)
		go func() { written <- os.WriteFile(filepath.Join(point, "file"), []byte("x"), 0o644) }()
		select {
		case err := <-written:
			t.Fatal("could be written:", err)
		case <-time.After(50 * time.Millisecond):
		}
		for again := 0; again < 2; again++ {
			if err := f.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
	}
}

// A freeze nobody waits for any more does not come true afterwards.
func TestAbandonedFileSystemFreeze(t *testing.T) {
	point := ext4(t)
	f, err := OpenFileSystem(point)
	if err != nil {
		t.Fatal(err)
	}
	goroutines := runtime.NumGoroutine()
	t.Cleanup(func() {
		eventually(t, "all have come back", func() bool { return runtime.NumGoroutine() <= goroutines })
		syscall.Close(f.dir)
	})
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	for i := 0; i < 20; i++ {
		f.Freeze(gone) // either outcome
		f.Thaw()
		if err := os.WriteFile(filepath.Join(point, "file"), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
