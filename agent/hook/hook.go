// Package hook runs the sandbox's own scripts around a freeze: what its user
// wants done before it sleeps and after it woke, and what tells that an image is
// ready to be saved as a template. They run as root unless their image says
// otherwise, as a command does but in no list, and decide nothing: a hook that
// fails, hangs or is not there is told about and holds up nobody beyond its
// time. One more, start, is the image's service: it runs as long as it likes.
package hook

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"space/agent/command"
)

// Dir is where the hooks are in a sandbox.
const Dir = "/etc/space/hooks"

// The hooks there are.
const (
	PreSuspend  = "pre-suspend"
	PostRestore = "post-restore"
	Ready       = "ready"
	Start       = "start"
)

// maxTail is how much of what a hook printed is told, in bytes.
const maxTail = 2 << 10

// killPatience is how long a hook that was killed may take to be gone.
const killPatience = time.Second

// Report is how a hook ended. Status is nil where it did not exit by itself.
type Report struct {
	Ran        bool   `json:"ran"`
	Status     *int   `json:"status"`
	TimedOut   bool   `json:"timed_out"`
	OutputTail string `json:"output_tail"`
}

// Runner runs hooks.
type Runner struct {
	commands *command.Table
	dir      string
	service  keeper

	mu   sync.Mutex
	last *Background
}

// Background is a hook that nobody waits for.
type Background struct {
	Name    string `json:"name"`
	Reason  string `json:"reason"`
	Running bool   `json:"running"`
	Report
}

// New makes a runner of the hooks in dir.
func New(commands *command.Table, dir string) *Runner { return &Runner{commands: commands, dir: dir} }

// Run runs a hook to its end, at most for timeout; 0 does not run it. When ctx
// ends, so does the hook.
func (r *Runner) Run(ctx context.Context, name, reason string, timeout time.Duration) Report {
	if timeout <= 0 {
		return Report{}
	}
	path := filepath.Join(r.dir, name)
	if !executable(path) {
		return Report{}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := r.commands.Run(ctx, specOf(path, reason, maxTail))
	if err != nil {
		return Report{Ran: true, OutputTail: err.Error(), TimedOut: ctx.Err() != nil}
	}
	report := Report{Ran: true}
	select {
	case <-c.Finished():
	case <-ctx.Done():
		report.TimedOut = true
		c.Kill()
		select {
		case <-c.Finished():
		case <-time.After(killPatience):
		}
	}
	if exit := c.Exit(); exit != nil {
		report.Status = exit.Code
	}
	report.OutputTail = printed(c)
	return report
}

// Start runs a hook and does not wait for it; Last tells of it.
func (r *Runner) Start(name, reason string, timeout time.Duration) {
	b := &Background{Name: name, Reason: reason, Running: true}
	r.mu.Lock()
	r.last = b
	r.mu.Unlock()
	go func() {
		report := r.Run(context.Background(), name, reason, timeout)
		r.mu.Lock()
		defer r.mu.Unlock()
		b.Report, b.Running = report, false
	}()
}

// Last is the hook that was started last, nil before the first.
func (r *Runner) Last() *Background {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return nil
	}
	last := *r.last
	return &last
}

func printed(c *command.Command) string {
	var text strings.Builder
	for at, _ := c.Output.Bounds(); ; {
		piece, ok, _ := c.Output.At(at)
		if !ok {
			return text.String()
		}
		text.Write(piece.Data)
		at = piece.Next
	}
}
