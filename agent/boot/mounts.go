package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

const noExec = syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC

// kernelMounts are made in the initramfs and moved along.
var kernelMounts = []mount{
	{"proc", "/proc", "proc", noExec, ""},
	{"sysfs", "/sys", "sysfs", noExec, ""},
	{"devtmpfs", "/dev", "devtmpfs", syscall.MS_NOSUID, "mode=0755"},
}

// runtimeMounts are made in the sandbox's root. ptmxmode lets every user open
// /dev/pts/ptmx, gid 5 is tty's on every distribution.
var runtimeMounts = []mount{
	{"devpts", "/dev/pts", "devpts", syscall.MS_NOSUID | syscall.MS_NOEXEC, "gid=5,mode=0620,ptmxmode=0666"},
	{"tmpfs", "/dev/shm", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=1777"},
	{"tmpfs", "/run", "tmpfs", syscall.MS_NOSUID | syscall.MS_NODEV, "mode=0755"},
	{"cgroup2", "/sys/fs/cgroup", "cgroup2", noExec, ""},
}

func (m mount) mount(under string) error {
	target := filepath.Join(under, m.target)
	if err := makeDir(target); err != nil {
		return err
	}
	if err := syscall.Mount(m.source, target, m.kind, m.flags, m.data); err != nil && err != syscall.EBUSY {
		return fmt.Errorf("%s: %w", target, err)
	}
	return nil
}

// BootID is where programs look which boot of the machine this is.
const BootID = "/proc/sys/kernel/random/boot_id"

// Environment is where programs find the sandbox's variables, of which those
// that run for longer than one sandbox have no other news.
const Environment = "/run/space/environment"

// maskBootID puts a file that can be written in the place of the kernel's boot
// id, which all copies of a snapshot would share. It has no other name. Who
// mounts another proc, a container engine say, still sees the kernel's in that.
func maskBootID() error {
	own, err := os.ReadFile(BootID)
	if err != nil {
		return err
	}
	const mask = "/run/boot_id"
	if err := os.WriteFile(mask, own, 0o444); err != nil {
		return err
	}
	defer os.Remove(mask)
	return syscall.Mount(mask, BootID, "", syscall.MS_BIND, "")
}

// makeDir makes sure that path is a directory. An image may have a symlink or a
// file there, which would lead a mount astray.
func makeDir(path string) error {
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return os.MkdirAll(path, 0o755)
}

func mountKernel() error {
	syscall.Umask(0o022)
	for _, m := range kernelMounts {
		if err := m.mount("/"); err != nil {
			return err
		}
	}
	return nil
}

func mountRoot() error {
	if err := waitFor(rootDevice); err != nil {
		return err
	}
	root := mount{rootDevice, newRoot, "ext4", syscall.MS_NOATIME, ""}
	return root.mount("/")
}

// waitFor waits for a device node: loading a driver returns before the kernel
// has made the nodes of what it found.
func waitFor(path string) error {
	for deadline := time.Now().Add(deviceWait); ; time.Sleep(time.Millisecond) {
		_, err := os.Stat(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not appear within %v", path, deviceWait)
		}
	}
}

// enterRoot moves to the root file system as switch_root(8) does.
func enterRoot() error {
	for _, m := range kernelMounts {
		target := filepath.Join(newRoot, m.target)
		if err := makeDir(target); err != nil {
			return err
		}
		if err := syscall.Mount(m.target, target, "", syscall.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", m.target, err)
		}
	}
	if err := freeInitramfs(); err != nil {
		return err
	}
	if err := os.Chdir(newRoot); err != nil {
		return err
	}
	if err := syscall.Mount(".", "/", "", syscall.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s: %w", newRoot, err)
	}
	if err := syscall.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

// freeInitramfs deletes what the initramfs holds; it lives in memory that would
// never come back. Only on its own device: the new root is mounted below it.
// This program stays in memory as long as it runs.
func freeInitramfs() error {
	var root syscall.Stat_t
	if err := syscall.Lstat("/", &root); err != nil {
		return err
	}
	var free func(dir string)
	free = func(dir string) {
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			var stat syscall.Stat_t
			if syscall.Lstat(path, &stat) != nil || stat.Dev != root.Dev {
				continue
			}
			if entry.IsDir() {
				free(path)
			}
			os.Remove(path)
		}
	}
	free("/")
	return nil
}

func mountRuntime() error {
	for _, m := range runtimeMounts {
		if err := m.mount("/"); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	// /dev/ptmx of devtmpfs is the kernel's node, mode 0666 already. /run/lock
	// and /tmp are where any program expects to be allowed to write.
	for _, dir := range []string{"/run/lock", "/tmp"} {
		if err := os.Mkdir(dir, 0o1777); err == nil {
			os.Chmod(dir, 0o1777|os.ModeSticky)
		}
	}
	// Let a container engine in the sandbox see its mounts propagate, as under
	// any other process 1, and let it have the controllers. Neither is vital.
	syscall.Mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, "")
	for _, controller := range []string{"+cpu", "+memory", "+pids", "+io", "+cpuset"} {
		os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte(controller), 0)
	}
	return nil
}
