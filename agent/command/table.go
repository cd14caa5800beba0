package command

import (
	"context"
	"net/http"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"space/agent/fault"
	"space/agent/freezer"
	"space/agent/output"
	"space/agent/reaper"
)

// maxFinished is how many finished commands stay readable.
const maxFinished = 256

// maxBudget bounds the memory of all kept output, in bytes; a small guest has
// an eighth of its memory instead.
const maxBudget = 64 << 20

// killPatience is how long a deletion waits for the processes to be gone. One
// in uninterruptible sleep may take longer; it dies when it wakes.
const killPatience = 2 * time.Second

// Table holds the commands that can be asked about.
type Table struct {
	reaper *reaper.Reaper
	group  *freezer.Group
	env    func() map[string]string
	budget int64
	grown  atomic.Int64 // blocks of output begun since the last balance

	mu       sync.Mutex
	commands map[string]*Command
	order    []*Command // finished ones, oldest first
}

// NewTable makes an empty table. All that is started begins in group. env gives
// the sandbox's environment at the time of each start.
func NewTable(r *reaper.Reaper, group *freezer.Group, env func() map[string]string) *Table {
	return &Table{reaper: r, group: group, env: env, budget: Budget(), commands: map[string]*Command{}}
}

// Budget is how many bytes all kept output may take on this machine.
func Budget() int64 {
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) != nil {
		return maxBudget
	}
	if eighth := int64(info.Totalram) * int64(info.Unit) / 8; eighth < maxBudget {
		return eighth
	}
	return maxBudget
}

// Run starts s for the agent itself: the table does not know the command. While
// the sandbox is frozen it waits, as long as ctx lives.
func (t *Table) Run(ctx context.Context, s Spec) (*Command, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	l, err := prepare(&s, t.env())
	if err != nil {
		return nil, err
	}
	return t.start(ctx, s, l)
}

// Start starts s, to be found by its id from now on. It waits as Run does.
func (t *Table) Start(ctx context.Context, s Spec) (*Command, error) {
	c, err := t.Run(ctx, s)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.commands[c.ID] = c
	if c.listed { // it was faster than we are
		t.order = append(t.order, c)
	}
	return c, nil
}

// Get finds a command.
func (t *Table) Get(id string) (*Command, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.commands[id]; c != nil {
		return c, nil
	}
	return nil, fault.New(http.StatusNotFound, "no_such_command",
		"there is no command %q, or it finished so long ago that it was forgotten", id)
}

// List returns all commands, oldest first.
func (t *Table) List() []*Command {
	t.mu.Lock()
	all := make([]*Command, 0, len(t.commands))
	for _, c := range t.commands {
		all = append(all, c)
	}
	t.mu.Unlock()
	sort.Slice(all, func(i, j int) bool {
		if !all[i].Started.Equal(all[j].Started) {
			return all[i].Started.Before(all[j].Started)
		}
		return all[i].ID < all[j].ID
	})
	return all
}

// Latest returns the command that was started last among those that is accepts,
// a running one if there is one, nil if there is none.
func (t *Table) Latest(is func(*Command) bool) (latest *Command) {
	for _, c := range t.List() {
		if is(c) && (latest == nil || latest.Exit() != nil || c.Exit() == nil) {
			latest = c
		}
	}
	return latest
}

// Delete kills the command's session if it runs, waits for its end and forgets it.
func (t *Table) Delete(id string) error {
	c, err := t.Get(id)
	if err != nil {
		return err
	}
	c.Kill()
	select {
	case <-c.finished:
	case <-time.After(killPatience):
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(c)
	return nil
}

// Activity counts what keeps a sandbox from being idle.
type Activity struct {
	Running    int // commands that have not finished
	Foreground int // of these, the ones not detached
	Readers    int // requests that are reading output
}

// Activity looks at all commands.
func (t *Table) Activity() Activity {
	t.mu.Lock()
	defer t.mu.Unlock()
	var a Activity
	for _, c := range t.commands {
		a.Readers += int(c.readers.Load())
		if c.Exit() == nil {
			a.Running++
			if !c.Spec.Detach {
				a.Foreground++
			}
		}
	}
	return a
}

// grew is called for every new block of output. Looking at all commands each
// time would slow a fast one down, so a small part of the budget may be overdrawn.
func (t *Table) grew() {
	if t.grown.Add(1)*output.BlockSize >= t.budget/64 {
		t.grown.Store(0)
		t.balance()
	}
}

func (t *Table) ended(c *Command) {
	t.mu.Lock()
	c.listed = true
	if t.commands[c.ID] == c {
		t.order = append(t.order, c)
	}
	t.mu.Unlock()
	t.balance()
}

// forget is called with mu held.
func (t *Table) forget(c *Command) {
	delete(t.commands, c.ID)
	for i := range t.order {
		if t.order[i] == c {
			t.order = append(t.order[:i:i], t.order[i+1:]...)
			return
		}
	}
}

// balance keeps the table within its bounds. Finished commands go first, the
// oldest at the head. If running ones alone need more, the largest output loses
// its oldest part: its readers see a gap, and process 1 of the guest lives.
func (t *Table) balance() {
	t.mu.Lock()
	defer t.mu.Unlock()
	var total int64
	for _, c := range t.commands {
		total += c.cost()
	}
	for len(t.order) > maxFinished || total > t.budget && len(t.order) > 0 {
		total -= t.order[0].cost()
		t.forget(t.order[0])
	}
	for total > t.budget {
		var largest *Command
		for _, c := range t.commands {
			if largest == nil || c.Output.Cost() > largest.Output.Cost() {
				largest = c
			}
		}
		if largest == nil {
			return
		}
		before := largest.Output.Cost()
		if !largest.Output.DropOldest() {
			return
		}
		total -= before - largest.Output.Cost()
	}
}
