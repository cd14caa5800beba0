package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"space/agent/sysno"
)

const moduleDir = "/modules"

// loadModules loads the files that /modules/order names, in its order. A kernel
// with all of it built in has no such folder.
func loadModules() error {
	order, err := os.ReadFile(filepath.Join(moduleDir, "order"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(order)) {
		if err := loadModule(filepath.Join(moduleDir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func loadModule(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	parameters := [1]byte{}
	_, _, errno := syscall.Syscall(sysno.FinitModule, file.Fd(), uintptr(unsafe.Pointer(&parameters[0])), 0)
	if errno != 0 && errno != syscall.EEXIST {
		return errno
	}
	return nil
}
