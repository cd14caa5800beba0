package boot

import (
	"syscall"
)

// openConsole gives descriptors 0 to 2 to the console. The kernel does so too,
// if the initramfs has a /dev/console; where it has none, the first files we
// open would get these numbers and the output of a crash would go there.
func openConsole() error {
	fd, err := syscall.Open("/dev/console", syscall.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		// No console configured: anything but closed will do.
		if fd, err = syscall.Open("/dev/null", syscall.O_RDWR, 0); err != nil {
			return err
		}
	}
	for target := 0; target <= 2; target++ {
		if fd != target {
			if err := syscall.Dup3(fd, target, 0); err != nil {
				return err
			}
		}
	}
	if fd > 2 {
		syscall.Close(fd)
	}
	return nil
}
