package fuse

import (
	"sync"
	"syscall"
)

const (
	writeLock = 1
	unlock    = 2

	maxLocks = 16384
)

// owner is who has a lock: an open file of a guest, or a process of it.
type owner struct {
	guest *guest
	id    uint64
	whole bool // flock(2), which is apart from fcntl(2)
}

// span is a locked part of a file; end is behind it.
type span struct {
	owner      owner
	kind       uint32
	pid        uint32
	start, end uint64
}

func (s span) overlaps(start, end uint64) bool { return s.start < end && start < s.end }

// Locks are what guests have locked in one volume, by the files' inode numbers.
type Locks struct {
	mu      sync.Mutex
	spans   map[uint64][]span
	total   int
	changed chan struct{} // closed when something was given up
}

// NewLocks returns an empty table.
func NewLocks() *Locks {
	return &Locks{spans: map[uint64][]span{}, changed: make(chan struct{})}
}

// conflict returns a lock of somebody else that forbids this one.
func (l *Locks) conflict(ino uint64, want span) (span, bool) {
	for _, s := range l.spans[ino] {
		other := s.owner != want.owner && s.owner.whole == want.owner.whole
		if other && s.overlaps(want.start, want.end) && (s.kind == writeLock || want.kind == writeLock) {
			return s, true
		}
	}
	return span{}, false
}

// set takes, changes or gives up a lock, and never waits: EAGAIN.
func (l *Locks) set(ino uint64, want span) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if want.kind != unlock {
		if _, found := l.conflict(ino, want); found {
			return syscall.EAGAIN
		}
		if l.total >= maxLocks {
			return syscall.ENOLCK
		}
	}
	var kept []span
	for _, s := range l.spans[ino] {
		if s.owner != want.owner || !s.overlaps(want.start, want.end) {
			kept = append(kept, s)
			continue
		}
		if before := s; s.start < want.start {
			before.end = want.start
			kept = append(kept, before)
		}
		if after := s; s.end > want.end {
			after.start = want.end
			kept = append(kept, after)
		}
	}
	if want.kind != unlock {
		kept = append(kept, want)
	}
	l.put(ino, kept)
	return nil
}

// wait takes a lock as soon as it can be had, or gives up when stop is closed.
func (l *Locks) wait(ino uint64, want span, stop <-chan struct{}) error {
	for {
		l.mu.Lock()
		changed := l.changed
		l.mu.Unlock()
		if err := l.set(ino, want); err != syscall.EAGAIN {
			return err
		}
		select {
		case <-changed:
		case <-stop:
			return syscall.EINTR
		}
	}
}

func (l *Locks) test(ino uint64, want span) (span, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conflict(ino, want)
}

// drop gives up all that a guest has locked.
func (l *Locks) drop(g *guest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for ino, spans := range l.spans {
		var kept []span
		for _, s := range spans {
			if s.owner.guest != g {
				kept = append(kept, s)
			}
		}
		l.put(ino, kept)
	}
}

func (l *Locks) put(ino uint64, spans []span) {
	l.total += len(spans) - len(l.spans[ino])
	if len(spans) == 0 {
		delete(l.spans, ino)
	} else {
		l.spans[ino] = spans
	}
	close(l.changed)
	l.changed = make(chan struct{})
}
