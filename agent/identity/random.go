package identity

import (
	"syscall"
	"unsafe"
)

// generator is the kernel's source of random numbers. It stays open once it was
// used, so that nothing is looked up on the way from a wake-up to user code.
type generator struct {
	fd   int
	open bool
	info []byte // room for what is said to it
}

// add credits seed to the generator and makes it key itself anew at once; without
// the second step it would go on with the snapshot's key for up to a minute
// (random(4)).
func (g *generator) add(seed []byte) error {
	const (
		rndAddEntropy = 0x40085203
		rndReseedCRNG = 0x5207
	)
	if !g.open {
		fd, err := syscall.Open("/dev/urandom", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		g.fd, g.open = fd, true
	}
	// struct rand_pool_info: entropy_count in bits, buf_size in bytes, buf
	g.info = append(append(g.info[:0], make([]byte, 8)...), seed...)
	*(*int32)(unsafe.Pointer(&g.info[0])) = int32(8 * len(seed))
	*(*int32)(unsafe.Pointer(&g.info[4])) = int32(len(seed))
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(g.fd), rndAddEntropy, uintptr(unsafe.Pointer(&g.info[0]))); errno != 0 {
		return errno
	}
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(g.fd), rndReseedCRNG, 0); errno != 0 {
		return errno
	}
	return nil
}
