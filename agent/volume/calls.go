package volume

import (
	"syscall"
	"unsafe"
)

const (
	dirFlags  = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	fileFlags = syscall.O_RDWR | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	removeDir = 0x200
)

func openat(dir int, name string, flags int, mode uint32) (int, error) {
	return syscall.Openat(dir, name, flags, mode)
}

func statat(dir int, name string, st *syscall.Stat_t) error {
	const noFollow = 0x100
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(sysFstatat, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(st)), noFollow, 0, 0)
	return fault(errno)
}

func unlinkat(dir int, name string, flags int) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall(syscall.SYS_UNLINKAT, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(flags))
	return fault(errno)
}

func mkdirat(dir int, name string) error { return syscall.Mkdirat(dir, name, 0o700) }

func renameat(from int, name string, to int, as string) error {
	return syscall.Renameat(from, name, to, as)
}

func linkat(from int, name string, to int, as string) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	q, err := syscall.BytePtrFromString(as)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(from), uintptr(unsafe.Pointer(p)), uintptr(to), uintptr(unsafe.Pointer(q)), 0, 0)
	return fault(errno)
}

func fgetxattr(fd int, name string, into []byte) (int, error) {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return 0, err
	}
	n, _, errno := syscall.Syscall6(syscall.SYS_FGETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&into[0])), uintptr(len(into)), 0, 0)
	return int(n), fault(errno)
}

func fsetxattr(fd int, name string, value []byte) error {
	p, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(&value[0])), uintptr(len(value)), 0, 0)
	return fault(errno)
}

// futimens sets both times; nanoseconds may be UtimeNow or UtimeOmit.
func futimens(fd int, times *[2]syscall.Timespec) error {
	_, _, errno := syscall.Syscall6(syscall.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(times)), 0, 0, 0)
	return fault(errno)
}

func fault(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}

// Nanoseconds with a meaning of their own (utimensat(2)).
const (
	UtimeNow  = 1<<30 - 1
	UtimeOmit = 1<<30 - 2
)
