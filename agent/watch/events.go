package watch

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"
)

// take works up what read(2) gave: struct inotify_event after struct inotify_event.
func (w *Watcher) take(data []byte) {
	for len(data) >= syscall.SizeofInotifyEvent {
		event := (*syscall.InotifyEvent)(unsafe.Pointer(&data[0]))
		end := syscall.SizeofInotifyEvent + int(event.Len)
		name := string(bytes.TrimRight(data[syscall.SizeofInotifyEvent:end], "\x00"))
		w.work(event, name)
		data = data[end:]
	}
}

func (w *Watcher) work(event *syscall.InotifyEvent, name string) {
	if event.Mask&syscall.IN_Q_OVERFLOW != 0 {
		w.err = ErrOverflow
		return
	}
	dir, watched := w.paths[int(event.Wd)]
	if !watched {
		return
	}
	if event.Mask&syscall.IN_IGNORED != 0 { // the directory is gone
		delete(w.paths, int(event.Wd))
		return
	}
	if name == "" && dir != w.root {
		return // its parent's watch tells that too
	}
	path := filepath.Join(dir, name)
	isDir := event.Mask&syscall.IN_ISDIR != 0
	if event.Mask&(syscall.IN_CREATE|syscall.IN_MOVED_TO) != 0 {
		w.came(path, event, isDir)
	}
	if event.Mask&(syscall.IN_MOVED_FROM|syscall.IN_MOVE_SELF) != 0 {
		w.tell(path, Rename)
		if isDir && name != "" && w.recursive {
			w.moved[event.Cookie] = path
		}
	}
	for _, kind := range []struct {
		bits uint32
		op   Op
	}{{syscall.IN_ATTRIB, Chmod}, {syscall.IN_MODIFY, Write}, {syscall.IN_DELETE | syscall.IN_DELETE_SELF, Remove}} {
		if event.Mask&kind.bits != 0 {
			w.tell(path, kind.op)
		}
	}
	if event.Mask&(syscall.IN_DELETE|syscall.IN_MOVED_FROM) != 0 {
		delete(w.fresh, path)
	}
}

// came tells of an entry that appeared, and watches it if it is to be.
func (w *Watcher) came(path string, event *syscall.InotifyEvent, isDir bool) {
	if event.Mask&syscall.IN_CREATE != 0 && w.fresh[path] {
		delete(w.fresh, path)
		return // told, and watched, when its directory was found
	}
	w.tell(path, Create)
	if !isDir || !w.recursive {
		return
	}
	// A directory that moved within the tree keeps its watches, and they get
	// their new names.
	delete(w.moved, event.Cookie)
	if err := w.add(path, event.Mask&syscall.IN_CREATE != 0); err == syscall.ENOSPC {
		w.err = err
	}
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}
