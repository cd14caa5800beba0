package command

import (
	"sync"
	"time"
)

// How long a command's output waits for followers that are far behind: long
// when nobody else listens, short when somebody does.
const (
	patienceAlone  = 30 * time.Second
	patienceOthers = time.Second
)

// followers are the readers of one command who are to miss nothing. Other
// readers come back by offset; a follower cannot, so a command that prints
// faster than its followers read is held up, within limits: one that stands
// still is given up, so that neither the command nor the others wait for it.
type followers struct {
	mu    sync.Mutex
	at    map[*Follower]int64 // the offset each has read up to
	moved chan struct{}       // closed when one has moved or left; nil when nobody waits
}

// Follower is one of them.
type Follower struct{ of *followers }

// Follow makes a follower who has read up to offset from. Close it.
func (c *Command) Follow(from int64) *Follower {
	f := &Follower{&c.followers}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.at == nil {
		f.of.at = map[*Follower]int64{}
	}
	f.of.at[f] = from
	return f
}

// Advance says that the follower has read up to an offset.
func (f *Follower) Advance(to int64) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if _, followed := f.of.at[f]; followed {
		f.of.at[f] = to
		f.of.wake()
	}
}

// Close ends it.
func (f *Follower) Close() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	delete(f.of.at, f)
	f.of.wake()
}

func (s *followers) wake() {
	if s.moved != nil {
		close(s.moved)
		s.moved = nil
	}
}

// behind counts the followers that have more than room bytes to read, of how
// many, and returns what is closed when that may have changed.
func (s *followers) behind(next, room int64) (slow, all int, moved <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.at {
		if next-at > room {
			slow++
		}
	}
	if s.moved == nil {
		s.moved = make(chan struct{})
	}
	return slow, len(s.at), s.moved
}

// giveUp forgets those who are behind: they will find that bytes are missing.
func (s *followers) giveUp(next, room int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f, at := range s.at {
		if next-at > room {
			delete(s.at, f)
		}
	}
}

// waitForFollowers returns when no follower is more than half of what is kept
// behind, or has been given up, or the command has ended: then little can come.
func (c *Command) waitForFollowers() {
	room := c.Spec.OutputLimit / 2
	began := time.Now()
	for {
		_, next := c.Output.Bounds()
		slow, all, moved := c.followers.behind(next, room)
		if slow == 0 {
			return
		}
		patience := patienceAlone
		if slow < all {
			patience = patienceOthers
		}
		left := time.NewTimer(patience - time.Since(began))
		select {
		case <-moved:
		case <-c.process.Done():
			left.Stop()
			return
		case <-left.C:
			c.followers.giveUp(next, room)
		}
		left.Stop()
	}
}
