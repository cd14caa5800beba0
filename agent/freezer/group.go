// Package freezer stops and continues the sandbox's programs, all of them and
// at once, while the agent goes on: with a freezer group of the kernel, in which
// every program is from its first instruction on, and with it everything it
// starts, whatever session or parent that chooses.
//
// The group is of the version 1 hierarchy. One of version 2 would be the place
// that container engines in the sandbox move programs out of, and a program can
// be put there only after it has begun. Here a thread of the agent goes into
// the group, forks, and comes back: a child begins in the group of the thread
// that made it. What root in the sandbox moves elsewhere is not stopped, which
// harms nobody but that sandbox.
package freezer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"syscall"
	"time"

	"space/agent/fault"
)

// ErrBusy says that not everything could be stopped in time.
var ErrBusy = errors.New("a program could not be stopped")

// yields is how often programs that were told to stop are let run at once to do
// so. They need some microseconds, and the shortest that the runtime sleeps is a
// millisecond.
const yields = 10

// Group is what can be frozen. Its zero value is one for a machine without
// freezer: programs start as ever, and nothing is ever frozen.
type Group struct {
	kernel *files // nil without freezer

	mu      sync.Mutex
	starts  int           // forks under way
	closed  bool          // no start may begin
	dropped uint64        // how often those that waited were sent away
	changed chan struct{} // closed at the next change of the above
}

// Available reports whether there is a freezer.
func (g *Group) Available() bool { return g.kernel != nil }

// Frozen reports whether programs are stopped, or about to be.
func (g *Group) Frozen() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Start calls fork so that the children it makes begin in the group. While the
// group is frozen it waits, until ctx ends or the waiting are sent away.
func (g *Group) Start(ctx context.Context, fork func() error) error {
	if g.kernel == nil {
		return fork()
	}
	if err := g.admit(ctx); err != nil {
		return err
	}
	defer g.leave()
	// The thread must not be lent to another goroutine while it is in the group.
	// The runtime makes no thread from a locked one, so none is born there.
	runtime.LockOSThread()
	if err := g.kernel.enter(); err != nil {
		runtime.UnlockOSThread()
		return fault.New(http.StatusInternalServerError, "no_freezer_group",
			"the sandbox's freezer group is gone (%v); restart the sandbox", err)
	}
	err := fork()
	if g.kernel.leave() == nil {
		runtime.UnlockOSThread()
	} // else the thread ends with this goroutine
	return err
}

// admit counts a start in.
func (g *Group) admit(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	dropped := g.dropped
	for g.closed {
		changed := g.nextChange()
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		g.mu.Lock()
		switch {
		case g.dropped != dropped:
			return fault.New(http.StatusServiceUnavailable, "not_started",
				"the sandbox was frozen before the command began and is another one now; send it again")
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
	g.starts++
	return nil
}

func (g *Group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.starts--
	g.wake()
}

// nextChange and wake are called with mu held.
func (g *Group) nextChange() <-chan struct{} {
	if g.changed == nil {
		g.changed = make(chan struct{})
	}
	return g.changed
}

func (g *Group) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// Freeze stops every program. When it returns nil, none runs: a thread that is
// inside a fork has come back first. It fails with ErrBusy when ctx ends or
// patience does before that (a program waits for an answer that a stopped
// program would have to give, as with a file system in user space); then
// everything goes on. Where nothing has to be waited for, as is usual, it sets no
// timer and does not look at ctx.
func (g *Group) Freeze(ctx context.Context, patience time.Duration) error {
	if g.kernel == nil {
		return nil
	}
	if g.closeAtOnce() {
		for i := 0; i < yields; i++ {
			frozen, err := g.kernel.freeze()
			if err != nil {
				break // it is met again below
			}
			if frozen {
				return nil
			}
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := g.close(ctx)
	for pause := 50 * time.Microsecond; err == nil; pause *= 2 {
		// Said anew each time: a parent that waits in vfork(2) may have begun to
		// just after it was told, and its child, being stopped, does not free it.
		var frozen bool
		if frozen, err = g.kernel.freeze(); err != nil || frozen {
			break
		}
		select {
		case <-ctx.Done():
			err = ErrBusy
		case <-time.After(pause):
		}
	}
	if err != nil {
		g.Thaw(false)
	}
	return err
}

// closeAtOnce lets no start begin, and reports whether none is under way.
func (g *Group) closeAtOnce() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.starts == 0
}

// close lets no start begin and waits for the last one that has.
func (g *Group) close(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for g.starts > 0 {
		changed := g.nextChange()
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		g.mu.Lock()
		if ctx.Err() != nil && g.starts > 0 {
			return ErrBusy
		}
	}
	return nil
}

// Thaw lets everything go on, also where nothing was frozen. With drop, the
// starts that waited are sent away: whoever asked for them is not there any more.
func (g *Group) Thaw(drop bool) error {
	if g.kernel == nil {
		return nil
	}
	err := g.kernel.thaw()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
	if drop {
		g.dropped++
	}
	g.wake()
	if err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}
