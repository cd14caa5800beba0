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
	heard int64               // the furthest offset up to which one was sent everything
	told  bool                // one was sent the end
}

// Follower is one of them.
type Follower struct{ of *followers }

// Follow makes a follower and says at which offset it begins: where the last
// one was left, as far back as output is kept, if there is no other; else at
// what comes next, for the others hear the rest. Close it.
func (c *Command) Follow() (f *Follower, from int64) {
	f = &Follower{&c.followers}
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	first, from := c.Output.Bounds()
	if len(f.of.at) == 0 {
		if from = f.of.heard; from < first {
			from = first
		}
	}
	if f.of.at == nil {
		f.of.at = map[*Follower]int64{}
	}
	f.of.at[f] = from
	return f, from
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

// Heard says that all up to an offset is on its way to the client.
func (f *Follower) Heard(to int64) {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.heard < to {
		f.of.heard = to
	}
}

// Told says that the end is on its way to the client.
func (f *Follower) Told() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.told = true
}

// Told says whether any follower was sent the end.
func (c *Command) Told() bool {
	c.followers.mu.Lock()
	defer c.followers.mu.Unlock()
	return c.followers.told
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
