package mount

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"space/agent/command"
	"space/agent/fuse"
	"space/agent/volume"
)

// TestMain lets this program also be what it starts: a relay, or a step to a command.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case RelayMode:
			os.Exit(Relay())
		case command.StepMode:
			os.Exit(command.Step(os.Args[2:]))
		}
	}
	os.Exit(m.Run())
}

// world is a volume with its server, and machines that mount it.
type world struct {
	t     *testing.T
	tree  *volume.Tree
	locks *fuse.Locks
	conns []net.Conn // the server's ends
}

func newWorld(t *testing.T) *world {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("this kernel has no FUSE")
	}
	tree, err := volume.Open(t.TempDir(), 1<<30, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, tree: tree, locks: fuse.NewLocks()}
}

// connect returns the guest's end of a connection to the server.
func (w *world) connect() (net.Conn, error) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, err := unixConn(pair[0])
	if err != nil {
		return nil, err
	}
	theirs, err := unixConn(pair[1])
	if err != nil {
		return nil, err
	}
	w.conns = append(w.conns, theirs)
	go func() {
		fuse.Serve(theirs, w.tree, w.locks)
		theirs.Close()
	}()
	return ours, nil
}

// machine mounts the volume and returns where, and its table.
func (w *world) machine() (string, *Table) {
	dir, table := w.t.TempDir(), New()
	if err := table.Attach(Volume{"v", dir}, w.connect); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { table.Keep(nil) })
	return dir, table
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestOneMachineSeesWhatAnotherWrites(t *testing.T) {
	w := newWorld(t)
	a, _ := w.machine()
	b, _ := w.machine()
	run(t, "bash", "-ec", `cd "$0"
		mkdir -p deep/er; echo one >deep/er/file; ln -s er deep/link; ln deep/er/file hard; mkfifo fifo
		chown 123:456 deep/er/file; chmod 4750 deep/er/file; mv deep/er/file moved
		for i in $(seq 500); do : >deep/f$i; done
		head -c 3000000 /dev/urandom >big; touch -d @1234567890.5 hard`, a)
	got := run(t, "bash", "-ec", `cd "$0"; cat moved; stat -c '%u %g %a %h %Y %F' moved; readlink deep/link; stat -c %F fifo; ls deep | wc -l; ls deep/link/`, b)
	want := "one\n123 456 4750 2 1234567890 regular file\ner\nfifo\n502\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	run(t, "cmp", filepath.Join(a, "big"), filepath.Join(b, "big"))
	if out, err := exec.Command("mknod", filepath.Join(a, "device"), "b", "1", "1").CombinedOutput(); err == nil || !strings.Contains(string(out), "not permitted") {
		t.Errorf("a device node: %v %s", err, out)
	}
	used := w.tree.Used()
	run(t, "bash", "-ec", `cd "$0"; rm -r big; rm -r deep`, b)
	if freed := used - w.tree.Used(); freed != 3000000+4096*(1+1+1+1+500)+2 { // big; deep, er, the link and the files
		t.Errorf("freed %d", freed)
	}
}

func TestPermissionsAreKept(t *testing.T) {
	w := newWorld(t)
	a, _ := w.machine()
	os.Chmod(filepath.Dir(a), 0o755)
	os.Chmod(a, 0o755)
	run(t, "bash", "-ec", `cd "$0"; echo secret >private; chmod 600 private; mkdir open; chmod 777 open`, a)
	out, _ := exec.Command("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "bash", "-c", `cd "$0"; cat private; echo x >open/mine; stat -c '%u %g' open/mine; echo y >mine`, a).CombinedOutput()
	if got := string(out); strings.Count(got, "denied") != 2 || !strings.Contains(got, "1000 1000") {
		t.Error(got)
	}
}

func TestOpenFilesAndFoldersOutliveTheConnection(t *testing.T) {
	w := newWorld(t)
	a, table := w.machine()
	b, _ := w.machine()
	run(t, "bash", "-ec", `mkdir -p "$0/dir/sub"; echo before >"$0/dir/sub/file"`, a)
	file, err := os.OpenFile(filepath.Join(a, "dir/sub/file"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// not as its directory: this process serves, and stands still while it forks
	shell := exec.Command("bash", "-ec", `cd "$0"; echo there; read; cat file; echo from shell >other`, filepath.Join(a, "dir/sub"))
	input, _ := shell.StdinPipe()
	output, _ := shell.StdoutPipe()
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := output.Read(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	w.conns[0].Close() // nobody answers
	stuck := make(chan error)
	go func() {
		_, err := file.WriteString("after\n")
		stuck <- err
	}()
	// not by a new process: one that has a copy of our open file would wait, too
	other, err := os.OpenFile(filepath.Join(b, "dir/sub/file"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	other.WriteString("other\n")
	other.Close()
	if err := table.Attach(Volume{"v", a}, w.connect); err != nil {
		t.Fatal(err)
	}
	if err := <-stuck; err != nil {
		t.Fatal(err)
	}
	input.Write([]byte("\n"))
	io.Copy(io.Discard, output)
	if err := shell.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "bash", "-ec", `cd "$0/dir/sub"; cat file other`, b); got != "before\nother\nafter\nfrom shell\n" {
		t.Errorf("%q", got)
	}
}

func TestLocksAreShared(t *testing.T) {
	w := newWorld(t)
	a, _ := w.machine()
	b, _ := w.machine()
	run(t, "touch", filepath.Join(a, "lock"))
	open := func(dir string) *os.File {
		file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	first, second := open(a), open(b)
	defer second.Close()
	if err := syscall.Flock(int(first.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(second.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK {
		t.Fatalf("locked twice: %v", err)
	}
	got := make(chan error)
	go func() { got <- syscall.Flock(int(second.Fd()), syscall.LOCK_EX) }()
	first.Close()
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("never locked")
	}
}

func TestACommandBeginsInAVolume(t *testing.T) {
	w := newWorld(t)
	a, _ := w.machine()
	run(t, "bash", "-ec", `cp /bin/pwd "$0/program"; printf x >"$0/no-program"; chmod 755 "$0/no-program"`, a)
	if got := run(t, self, command.StepMode, a, "./program", "pwd"); got != a+"\n" {
		t.Errorf("%q", got)
	}
	for program, status := range map[string]int{"./none": 127, "./no-program": 126} {
		step := exec.Command(self, command.StepMode, a, program, program)
		if step.Run(); step.ProcessState.ExitCode() != status {
			t.Errorf("%s: %v", program, step.ProcessState)
		}
	}
}
