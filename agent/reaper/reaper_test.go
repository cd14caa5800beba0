package reaper

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

var shared *Reaper

func TestMain(m *testing.M) {
	syscall.RawSyscall(syscall.SYS_PRCTL, 36, 1, 0) // PR_SET_CHILD_SUBREAPER: orphans are ours, as process 1's
	shared = New()
	os.Exit(m.Run())
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := shared.Start("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEveryStatusArrives(t *testing.T) {
	var wait sync.WaitGroup
	for i := 0; i < 300; i++ {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			p := start(t, fmt.Sprintf("exit %d", i%256)) // often dead before Start returns
			select {
			case <-p.Done():
				if p.Status().ExitStatus() != i%256 {
					t.Errorf("%d: %v", i, p.Status())
				}
			case <-time.After(20 * time.Second):
				t.Errorf("the status of %d was lost", i)
			}
		}(i)
		if i%40 == 39 {
			wait.Wait()
		}
	}
	wait.Wait()
}

func TestOrphansAreCollected(t *testing.T) {
	before := children(t)
	for i := 0; i < 20; i++ {
		<-start(t, "sleep 0.05 & sleep 0.1 & exit 0").Done()
	}
	for deadline := time.Now().Add(5 * time.Second); children(t) > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d children are left", children(t)-before)
		}
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if len(shared.children)+len(shared.unclaimed)+len(shared.starting) != 0 {
		t.Errorf("%d children, %d unclaimed, %d starting", len(shared.children), len(shared.unclaimed), len(shared.starting))
	}
}

// children counts ours, zombies too.
func children(t *testing.T) (n int) {
	for _, task := range mustList(t, "/proc/self/task") {
		content, _ := os.ReadFile("/proc/self/task/" + task + "/children")
		for _, c := range content {
			if c == ' ' {
				n++
			}
		}
	}
	return n
}

func mustList(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestFailedStartLeavesNothing(t *testing.T) {
	for i := 0; i < 50; i++ {
		if _, err := shared.Start("/no/such/program", []string{"x"}, &syscall.ProcAttr{}); err != syscall.ENOENT {
			t.Fatal(err)
		}
	}
	if p := start(t, "exit 9"); true {
		if <-p.Done(); p.Status().ExitStatus() != 9 {
			t.Fatal(p.Status())
		}
	}
}

func TestOnlyTheLivingAreSignalled(t *testing.T) {
	p := start(t, "sleep 100")
	if err := p.WhileAlive(func() error { return syscall.Kill(-p.Pid, syscall.SIGTERM) }); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Status().Signal() != syscall.SIGTERM {
		t.Fatal(p.Status())
	}
	if err := p.WhileAlive(func() error { t.Error("called"); return nil }); err != ErrGone {
		t.Fatal(err)
	}
}
