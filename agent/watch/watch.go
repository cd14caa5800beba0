// Package watch tells what happens in a directory, or in a whole tree, as the
// kernel reports it (inotify(7)). One change may be several events: a new file
// that is written is Create, Chmod if its owner is set, and Write.
package watch

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Op is a kind of event.
type Op uint8

// The kinds of events. Rename is that an entry was moved away from its name;
// under the new one it is a Create.
const (
	Create Op = iota
	Write
	Remove
	Rename
	Chmod
)

// Event is one event. Name is relative to the watched directory, and "." that itself.
type Event struct {
	Name string
	Op   Op
}

// maxEvents bounds the events that wait to be taken, as the kernel bounds its own queue.
const maxEvents = 1 << 16

// halfMove is how long a directory that left its name is waited for under a new one.
const halfMove = 20 * time.Millisecond

// ErrOverflow says that more happened than could be kept: events are missing.
var ErrOverflow = errors.New("too many events at once: some are lost")

// mask is what is asked of the kernel. IN_MASK_ADD leaves a watch that is
// there already as it is; without it the kernel clears the watch's mask for a
// moment, and an event of that moment is lost.
const mask = syscall.IN_CREATE | syscall.IN_MOVED_TO | syscall.IN_MOVED_FROM | syscall.IN_ATTRIB | syscall.IN_MODIFY |
	syscall.IN_DELETE | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF | syscall.IN_ONLYDIR | syscall.IN_MASK_ADD

// Watcher watches until it is closed.
type Watcher struct {
	root      string
	recursive bool
	file      *os.File

	mu      sync.Mutex // held while events are read and worked up
	paths   map[int]string
	fresh   map[string]bool   // entries told about before the kernel's event for them came
	moved   map[uint32]string // directories that went, and have not come back, by the kernel's cookie
	events  []Event
	err     error
	changed chan struct{} // closed when there are events; nil when nobody waits
	buffer  [32 << 10]byte
}

// New watches the directory root and, if recursive, all below it, also what is
// made later.
func New(root string, recursive bool) (*Watcher, error) {
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &Watcher{
		root: root, recursive: recursive, file: os.NewFile(uintptr(fd), "inotify"),
		paths: map[int]string{}, fresh: map[string]bool{}, moved: map[uint32]string{},
	}
	if err := w.add(root, false); err != nil {
		w.file.Close()
		return nil, err
	}
	go w.run()
	return w, nil
}

// Close ends the watcher.
func (w *Watcher) Close() { w.file.Close() }

// Take returns the events since it was called last, all that happened before
// the call among them. Without any, it returns what is closed when there are.
func (w *Watcher) Take() (events []Event, wait <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
	if len(w.events) == 0 && w.err != nil {
		return nil, nil, w.err
	}
	events, w.events = w.events, nil
	if events == nil {
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		wait = w.changed
	}
	return events, wait, nil
}

// CatchUp works up what has happened: directories made before the call are watched after it.
func (w *Watcher) CatchUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drain()
}

// run reads as soon as there is something, until the file is closed.
func (w *Watcher) run() {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	conn.Read(func(uintptr) bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.drain()
		return false // wait for more
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = os.ErrClosed
	}
	w.wake()
}

// drain reads all there is. It is called with mu held.
func (w *Watcher) drain() {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	conn.Control(func(fd uintptr) {
		w.read(fd)
		// The kernel queues the two halves of a move one after the other: the
		// second may still be on its way.
		for waited := time.Duration(0); len(w.moved) > 0 && waited < halfMove; waited += time.Millisecond {
			time.Sleep(time.Millisecond)
			w.read(fd)
		}
	})
	w.fresh = map[string]bool{} // their events were among those
	// A directory that moved and did not come back is outside now.
	for cookie, path := range w.moved {
		w.forget(path)
		delete(w.moved, cookie)
	}
	if len(w.events) > 0 || w.err != nil {
		w.wake()
	}
}

// read works up what the kernel has queued.
func (w *Watcher) read(fd uintptr) {
	for {
		n, err := syscall.Read(int(fd), w.buffer[:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		w.take(w.buffer[:n])
	}
}

func (w *Watcher) wake() {
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// tell queues an event. Like the kernel, it does not repeat the last one.
func (w *Watcher) tell(path string, op Op) {
	name, err := filepath.Rel(w.root, path)
	if err != nil || w.err != nil {
		return
	}
	event := Event{name, op}
	if n := len(w.events); n > 0 && w.events[n-1] == event {
		return
	}
	if len(w.events) == maxEvents {
		w.err = ErrOverflow
		return
	}
	w.events = append(w.events, event)
}

// add watches a directory and, in a recursive watcher, those below it. With
// unseen, the directory is new: what is in it already has been made while
// nobody looked, and is told about.
func (w *Watcher) add(dir string, unseen bool) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var wd int
	if e := conn.Control(func(fd uintptr) { wd, err = syscall.InotifyAddWatch(int(fd), dir, mask) }); e != nil {
		return e
	}
	if err != nil {
		return err
	}
	w.paths[wd] = dir
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // gone since
	}
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		if unseen {
			w.fresh[path] = true
			w.tell(path, Create)
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
				w.tell(path, Write)
			}
		}
		if entry.IsDir() {
			if err := w.add(path, unseen); errors.Is(err, syscall.ENOSPC) {
				return err // no more watches: the rest would fail too
			}
		}
	}
	return nil
}

// forget ends the watches of a directory and all below it.
func (w *Watcher) forget(dir string) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	for wd, path := range w.paths {
		if within(path, dir) {
			delete(w.paths, wd)
			conn.Control(func(fd uintptr) { syscall.InotifyRmWatch(int(fd), uint32(wd)) })
		}
	}
}
