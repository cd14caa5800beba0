package command

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"space/agent/fault"
	"space/agent/output"
	"space/agent/reaper"
)

// Command is a running or finished command.
type Command struct {
	ID      string
	PID     int
	Spec    Spec // without Env, which may hold secrets: see Env
	User    string
	Cwd     string
	Started time.Time
	Output  *output.Log

	process  *reaper.Process
	input    *input
	finished chan struct{} // closed once the exit is known and the output sealed
	timedOut atomic.Bool
	endAsked atomic.Bool
	readers  atomic.Int64
	listed   bool // under the table's lock: has been told as finished

	followers followers

	mu   sync.Mutex
	env  map[string]string // nil once finished
	exit *Exit
}

// Exit is how a command ended. Exactly one of Code and Signal is set.
type Exit struct {
	Code     *int
	Signal   string
	Status   syscall.WaitStatus // what both are made from
	TimedOut bool
	Duration time.Duration
	At       time.Time
}

// start runs what l describes.
func (t *Table) start(ctx context.Context, s Spec, l *launch) (*Command, error) {
	io, err := open(&s, l.user.UID)
	if err != nil {
		return nil, stdioFault(err)
	}
	c := &Command{
		ID: newID(), Spec: s, User: l.user.Name, Cwd: l.dir,
		Output:   output.NewLog(s.OutputLimit),
		finished: make(chan struct{}),
	}
	c.env, c.Spec.Env = s.Env, nil
	c.input = newInput(io, c.finished)
	attr := &syscall.ProcAttr{
		Dir:   l.dir,
		Env:   l.env,
		Files: []uintptr{uintptr(io.child[0]), uintptr(io.child[1]), uintptr(io.child[2])},
		Sys: &syscall.SysProcAttr{
			Setsid:     true,
			Setctty:    s.PTY != nil,
			Credential: &syscall.Credential{Uid: l.user.UID, Gid: l.user.GID, Groups: l.user.Groups()},
		},
	}
	err = t.group.Start(ctx, func() (err error) {
		c.Started = time.Now()
		if c.process, err = t.reaper.Start(l.path, l.argv, attr); err != nil {
			return startFault(err, l)
		}
		return nil
	})
	if err != nil {
		io.abandon()
		return nil, err
	}
	io.started()
	c.PID = c.process.Pid
	keep := func(stream output.Stream, p []byte) {
		if c.Output.Append(stream, p) {
			t.grew()
		}
		c.waitForFollowers()
	}
	var pumps []*pump
	for _, source := range io.sources {
		pumps = append(pumps, startPump(source, keep))
	}
	go c.supervise(pumps, t.ended)
	return c, nil
}

// supervise sees the command to its end.
func (c *Command) supervise(pumps []*pump, ended func(*Command)) {
	if c.Spec.Timeout > 0 {
		timer := time.AfterFunc(c.Spec.Timeout, func() { c.kill(&c.timedOut) })
		defer timer.Stop()
	}
	<-c.process.Done()
	exit := &Exit{Status: c.process.Status(), TimedOut: c.timedOut.Load(), Duration: time.Since(c.Started)}
	if exit.Status.Signaled() {
		exit.Signal = SignalName(exit.Status.Signal())
	} else {
		code := exit.Status.ExitStatus()
		exit.Code = &code
	}
	settle(pumps)
	exit.At = time.Now()
	c.mu.Lock()
	c.exit, c.env = exit, nil
	c.mu.Unlock()
	c.Output.Seal()
	close(c.finished)
	c.input.close()
	ended(c)
}

// Exit is how the command ended, nil while it runs.
func (c *Command) Exit() *Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit
}

// EndAsked reports whether somebody who knew the command has told it to end.
func (c *Command) EndAsked() bool { return c.endAsked.Load() }

// Env is the environment that was asked for, nil once the command has finished.
func (c *Command) Env() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.env
}

// cost is the memory the command holds: its output, and what it was started with.
func (c *Command) cost() int64 {
	size := int64(len(c.Spec.Cmd))
	for _, arg := range c.Spec.Args {
		size += int64(len(arg)) + 16
	}
	for name, value := range c.Env() {
		size += int64(len(name)+len(value)) + 32
	}
	return size + c.Output.Cost()
}

// Finished is closed when Exit is known and Output complete.
func (c *Command) Finished() <-chan struct{} { return c.finished }

// Attach counts a reader until the returned function is called.
func (c *Command) Attach() (detach func()) {
	c.readers.Add(1)
	return func() { c.readers.Add(-1) }
}

// Resize changes the terminal's size; the programs in it get SIGWINCH.
func (c *Command) Resize(size Size) error {
	if c.Spec.PTY == nil {
		return fault.New(http.StatusConflict, "not_a_pty", "the command has no terminal; start it with pty to resize it")
	}
	if c.Exit() != nil {
		return c.isFinished()
	}
	var err error
	if e := onDescriptor(c.input.file, func(fd int) { err = setSize(fd, size) }); e != nil {
		return c.isFinished()
	}
	return err
}

func (c *Command) isFinished() error {
	return fault.New(http.StatusConflict, "command_finished", "command %s has finished", c.ID)
}

func newID() string {
	var b [10]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // getrandom(2) does not fail on a Linux we run on
	}
	return "cmd_" + hex.EncodeToString(b[:])
}
