package freezer

import (
	"context"
	"sync"
	"syscall"
)

// FileSystem is one that can be made consistent on its disk and closed to
// writes. Meanwhile whoever writes to it hangs, the agent's own uploads
// included; the way to Thaw therefore writes to no file system and looks up
// nothing in one.
type FileSystem struct {
	dir int

	mu     sync.Mutex
	wanted bool // frozen, or about to be
}

// OpenFileSystem takes hold of the one that the folder dir is in.
func OpenFileSystem(dir string) (*FileSystem, error) {
	fd, err := syscall.Open(dir, syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &FileSystem{dir: fd}, nil
}

// Freeze writes out what waits and lets nobody write. When ctx ends first, it
// gives up: the kernel cannot be interrupted in it, so what it then achieves is
// undone at once.
func (f *FileSystem) Freeze(ctx context.Context) error {
	const fiFreeze = 0xc0045877
	f.mu.Lock()
	f.wanted = true
	f.mu.Unlock()
	done := make(chan error, 1)
	go func() {
		err := f.ioctl(fiFreeze)
		f.mu.Lock()
		defer f.mu.Unlock()
		if err == nil && !f.wanted {
			f.thaw()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == syscall.EBUSY { // somebody in the sandbox was faster
			return nil
		}
		return err
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wanted = false
		f.thaw() // it may just have come true
		return ctx.Err()
	}
}

// Thaw lets everybody write again. It does nothing to one that is not frozen.
func (f *FileSystem) Thaw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.wanted {
		return nil
	}
	f.wanted = false
	return f.thaw()
}

func (f *FileSystem) thaw() error {
	const fiThaw = 0xc0045878
	if err := f.ioctl(fiThaw); err != nil && err != syscall.EINVAL { // not frozen
		return err
	}
	return nil
}

func (f *FileSystem) ioctl(request uintptr) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(f.dir), request, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
