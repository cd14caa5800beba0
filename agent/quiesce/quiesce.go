// Package quiesce brings the sandbox to rest, so that a copy of it is a good
// one, and to life again. At rest, no program runs and, if asked for, the disk
// is consistent. What a copy woke up with (clock, entropy, names) is put right
// before its programs go on; that order is why they were stopped.
package quiesce

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"syscall"
	"time"

	"space/agent/fault"
	"space/agent/freezer"
	"space/agent/hook"
)

// stopPatience is how long programs may take to be stopped. It takes less than
// a millisecond, or for ever.
const stopPatience = 2 * time.Second

// Guest is what is brought to rest.
type Guest struct {
	group *freezer.Group
	root  *freezer.FileSystem // nil: not ours to freeze
	hooks *hook.Runner

	mu       sync.Mutex // held while the state changes
	deadline *time.Timer
}

// New makes a guest whose programs are in group and whose files in root.
func New(group *freezer.Group, root *freezer.FileSystem, hooks *hook.Runner) *Guest {
	return &Guest{group: group, root: root, hooks: hooks}
}

// Wish says how much rest is wanted.
type Wish struct {
	Reason      string // told to the hook
	HookTimeout time.Duration
	Sync        bool          // write out what programs have written
	FSFreeze    bool          // make the root file system consistent, and let nobody write
	Limit       time.Duration // for all but the hook; then the rest ends by itself
}

// Report is what was done.
type Report struct {
	Frozen bool // false on a machine without freezer
	Hook   hook.Report
	Took   time.Duration // without the hook
}

// Freeze runs the hook and brings the guest to rest, or leaves it as it was.
// Called again, it runs no hook and begins the limit anew.
func (g *Guest) Freeze(ctx context.Context, w Wish) (Report, error) {
	var report Report
	if w.FSFreeze && g.root == nil {
		return report, fault.New(http.StatusConflict, "no_fsfreeze", "the root file system is not the agent's to freeze")
	}
	if !g.group.Frozen() {
		report.Hook = g.hooks.Run(ctx, hook.PreSuspend, w.Reason, w.HookTimeout)
		if report.Hook.Ran && ctx.Err() != nil {
			return report, fault.New(http.StatusConflict, "cannot_freeze", "whoever asked for it has left").Because(ctx.Err())
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	began := time.Now()
	if err := g.stop(ctx, w); err != nil {
		g.thaw(false)
		return report, err
	}
	g.endAfter(w.Limit)
	report.Frozen, report.Took = g.group.Available(), time.Since(began)
	return report, nil
}

// stop is called with mu held. What is undone on failure is the caller's. Where
// nothing is to be written out, nothing is likely to be waited for either: then
// the way is free of timers, and whether ctx ends is looked at only if need be.
func (g *Guest) stop(ctx context.Context, w Wish) error {
	patience := stopPatience
	if w.Limit < patience {
		patience = w.Limit
	}
	if !w.Sync && !w.FSFreeze {
		return g.stopPrograms(ctx, patience)
	}
	ctx, cancel := context.WithTimeout(ctx, w.Limit)
	defer cancel()
	// Most of it while programs still run; what they write meanwhile is little.
	if err := flush(ctx); err != nil {
		return err
	}
	if err := g.stopPrograms(ctx, patience); err != nil {
		return err
	}
	if !w.FSFreeze {
		return flush(ctx)
	}
	if err := g.root.Freeze(ctx); err != nil {
		return outOfTime(err, "the root file system could not be frozen")
	}
	return nil
}

func (g *Guest) stopPrograms(ctx context.Context, patience time.Duration) error {
	if err := g.group.Freeze(ctx, patience); err != nil {
		return fault.New(http.StatusConflict, "cannot_freeze",
			"the sandbox's programs could not be stopped (%v); they go on", err).Because(err)
	}
	return nil
}

// flush writes out every file system, or stops waiting for that.
func flush(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		syscall.Sync()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return outOfTime(ctx.Err(), "what was written could not be brought to the disk")
	}
}

func outOfTime(err error, what string) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(http.StatusServiceUnavailable, "freeze_timeout", "%s in time; the sandbox goes on", what).Because(err)
	}
	return fault.New(http.StatusServiceUnavailable, "freeze_failed", "%s (%v); the sandbox goes on", what, err).Because(err)
}

// limitTick is how finely the limit is counted.
const limitTick = 100 * time.Millisecond

// endAfter wakes a guest whose host has gone. It is called with mu held. The
// limit is counted in ticks, so that a machine that stood still counts one for
// all that time, whatever its clock makes of it: it has not been left alone, and
// what must happen before its programs go on is on its way.
func (g *Guest) endAfter(limit time.Duration) {
	g.stopTimer()
	var timer *time.Timer
	timer = time.AfterFunc(limitTick, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.deadline != timer {
			return
		}
		if limit -= limitTick; limit > 0 {
			timer.Reset(limitTick)
			return
		}
		g.thaw(false)
	})
	g.deadline = timer
}

func (g *Guest) stopTimer() {
	if g.deadline != nil {
		g.deadline.Stop()
		g.deadline = nil
	}
}

// OpenFiles lets the agent write again, while programs still rest.
func (g *Guest) OpenFiles() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.root == nil {
		return nil
	}
	return g.root.Thaw()
}

// Thaw ends the rest, also where there is none. With drop, commands that waited
// for its end are not started: see freezer.Group.
func (g *Guest) Thaw(drop bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.thaw(drop)
}

func (g *Guest) thaw(drop bool) (err error) {
	g.stopTimer()
	if g.root != nil {
		err = g.root.Thaw()
	}
	if e := g.group.Thaw(drop); e != nil {
		return e
	}
	return err
}

// Frozen reports whether programs are stopped.
func (g *Guest) Frozen() bool { return g.group.Frozen() }
