package command

import (
	"os"
	"syscall"
	"unsafe"
)

// openPTY makes a terminal. The slave is opened through its master
// (TIOCGPTPEER, Linux 4.13), not by a path that a program could have replaced.
func openPTY(size Size, uid uint32) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer func() {
		if err != nil {
			syscall.Close(master)
		}
	}()
	var unlock int32
	if err = ioctl(master, syscall.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		return -1, -1, err
	}
	const tiocgptpeer = 0x5441
	peer, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(master), tiocgptpeer,
		syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if errno != 0 {
		return -1, -1, errno
	}
	slave = int(peer)
	defer func() {
		if err != nil {
			syscall.Close(slave)
		}
	}()
	if err = setSize(master, size); err != nil {
		return -1, -1, err
	}
	// The terminal belongs to whoever uses it, so that mesg, script, su work.
	if err = syscall.Fchown(slave, int(uid), -1); err != nil {
		return -1, -1, err
	}
	return master, slave, syscall.Fchmod(slave, 0o620)
}

func setSize(fd int, size Size) error {
	winsize := struct{ rows, cols, x, y uint16 }{size.Rows, size.Cols, 0, 0}
	return ioctl(fd, syscall.TIOCSWINSZ, unsafe.Pointer(&winsize))
}

// eofByte is the character that means end of file to the terminal's reader.
func eofByte(fd int) byte {
	var t syscall.Termios
	if ioctl(fd, syscall.TCGETS, unsafe.Pointer(&t)) == nil && t.Cc[syscall.VEOF] != 0 {
		return t.Cc[syscall.VEOF]
	}
	return 4
}

// signalForeground signals the terminal's foreground process group. The kernel
// knows the group itself (TIOCSIG), not just a number that may have been reused.
func signalForeground(fd int, s syscall.Signal) error {
	const tiocsig = 0x40045436
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tiocsig, uintptr(s))
	if errno != 0 {
		return errno
	}
	return nil
}

// unread is how many bytes wait to be read from fd.
func unread(fd int) int64 {
	var n int32
	if ioctl(fd, syscall.TIOCINQ, unsafe.Pointer(&n)) != nil { // FIONREAD
		return 0
	}
	return int64(n)
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}

// onDescriptor calls f with the file's descriptor without making it blocking,
// which os.File.Fd would. It fails if the file is closed.
func onDescriptor(file *os.File, f func(fd int)) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return conn.Control(func(fd uintptr) { f(int(fd)) })
}
