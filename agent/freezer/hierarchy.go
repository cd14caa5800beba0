package freezer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// files are descriptors of what the kernel offers, open for good, so that
// nothing is looked up on the way to a command.
type files struct {
	home  int // tasks of the hierarchy's root, where the agent lives
	tasks int // and of the group
	state int
}

// Open makes the group called name in the kernel's freezer hierarchy. The
// hierarchy is mounted at the folder place, which is made for it, and is out of
// sight again on return.
func Open(place, name string) (*Group, error) {
	hide, err := show(place)
	if err != nil {
		return nil, err
	}
	defer hide()
	group := filepath.Join(place, name)
	if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
		return nil, err
	}
	var f files
	for _, one := range []struct {
		fd    *int
		path  string
		flags int
	}{
		{&f.home, filepath.Join(place, "tasks"), syscall.O_WRONLY},
		{&f.tasks, filepath.Join(group, "tasks"), syscall.O_WRONLY},
		{&f.state, filepath.Join(group, "freezer.state"), syscall.O_RDWR},
	} {
		var err error
		if *one.fd, err = syscall.Open(one.path, one.flags|syscall.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("%s: %w", one.path, err)
		}
	}
	return &Group{kernel: &f}, nil
}

// KeepFreezing makes an empty group that stays frozen. A kernel that freezes its
// first group, and thaws its last, rewrites its own code wherever it asks
// whether to freeze (the static key freezer_active); an emulator then has to
// translate that anew, which takes longer than all the rest.
func KeepFreezing(place, name string) error {
	hide, err := show(place)
	if err != nil {
		return err
	}
	defer hide()
	group := filepath.Join(place, name)
	if err := os.Mkdir(group, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	return os.WriteFile(filepath.Join(group, "freezer.state"), []byte("FROZEN"), 0)
}

// show mounts the hierarchy at the folder place, until hide is called.
func show(place string) (hide func(), err error) {
	if err := os.MkdirAll(place, 0o700); err != nil {
		return nil, err
	}
	const flags = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC
	if err := syscall.Mount("cgroup", place, "cgroup", flags, "freezer"); err != nil {
		os.Remove(place)
		return nil, fmt.Errorf("mount freezer hierarchy: %w", err)
	}
	return func() {
		syscall.Unmount(place, syscall.MNT_DETACH)
		os.Remove(place)
	}, nil
}

// enter puts the calling thread, which must be locked, into the group. "0" is
// the writer itself; to move that, the kernel waits for nobody (Linux 5.5).
func (f *files) enter() error { return write(f.tasks, "0") }

// leave takes it back home.
func (f *files) leave() error { return write(f.home, "0") }

// freeze tells every task of the group to stop, and reports whether all have.
func (f *files) freeze() (frozen bool, err error) {
	if err := write(f.state, "FROZEN"); err != nil {
		return false, err
	}
	var state [16]byte
	n, err := syscall.Pread(f.state, state[:], 0)
	return strings.TrimSpace(string(state[:n])) == "FROZEN", err
}

func (f *files) thaw() error { return write(f.state, "THAWED") }

func write(fd int, text string) error {
	_, err := syscall.Write(fd, []byte(text))
	return err
}
