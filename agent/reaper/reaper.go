// Package reaper owns every wait(2) of the agent. As process 1 the agent
// inherits all orphans and must collect them with wait4(-1); a second waiter in
// the same process (os/exec) would then lose its exit statuses to that call. So
// children are started here, and nowhere else.
//
// The pid of a child may be reused the moment it is reaped. Reaping and
// signalling therefore share one lock: a signal is sent only to a process that
// is known not to have been collected.
package reaper

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// ErrGone says that the process has been reaped.
var ErrGone = errors.New("process has exited")

// Reaper collects children. Make one per program, with New.
type Reaper struct {
	mu       sync.Mutex
	children map[int]*Process
	// A child can die before Start learns its pid. While starts are under way,
	// statuses nobody has asked for are kept, numbered by clock; a start looks
	// only at those collected after it began.
	unclaimed map[int]unclaimed
	starting  map[uint64]struct{}
	clock     uint64
}

type unclaimed struct {
	status syscall.WaitStatus
	at     uint64
}

// Process is a child started by Start.
type Process struct {
	Pid    int
	reaper *Reaper
	gone   bool // under reaper.mu
	done   chan struct{}
	status syscall.WaitStatus
}

// New starts collecting the children of this program.
func New() *Reaper {
	r := &Reaper{
		children:  map[int]*Process{},
		unclaimed: map[int]unclaimed{},
		starting:  map[uint64]struct{}{},
	}
	deaths := make(chan os.Signal, 1)
	signal.Notify(deaths, syscall.SIGCHLD)
	go func() {
		// Signals coalesce: one may stand for many deaths. And children that
		// died before Notify are found by the first round.
		for {
			for r.collect() {
			}
			<-deaths
		}
	}()
	return r
}

// collect reaps one child, if one is dead.
func (r *Reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
	if err == syscall.EINTR {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if p := r.children[pid]; p != nil {
		delete(r.children, pid)
		p.finish(status)
	} else if len(r.starting) > 0 {
		r.clock++
		r.unclaimed[pid] = unclaimed{status, r.clock}
	}
	return true
}

func (p *Process) finish(status syscall.WaitStatus) {
	p.status, p.gone = status, true
	close(p.done)
}

// Start forks and executes path. It takes the arguments of syscall.ForkExec.
// No lock is held meanwhile: an exec that hangs on a dead file system must not
// hold up other commands.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (*Process, error) {
	r.mu.Lock()
	r.clock++
	began := r.clock
	r.starting[began] = struct{}{}
	r.mu.Unlock()

	pid, err := syscall.ForkExec(path, argv, attr)

	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.endStart(began)
	if err != nil {
		return nil, err
	}
	p := &Process{Pid: pid, reaper: r, done: make(chan struct{})}
	if dead, ok := r.unclaimed[pid]; ok && dead.at > began {
		delete(r.unclaimed, pid)
		p.finish(dead.status)
	} else {
		r.children[pid] = p
	}
	return p, nil
}

// endStart forgets the statuses that no start still under way can ask for.
func (r *Reaper) endStart(began uint64) {
	delete(r.starting, began)
	oldest := r.clock
	for other := range r.starting {
		if other < oldest {
			oldest = other
		}
	}
	for pid, dead := range r.unclaimed {
		if len(r.starting) == 0 || dead.at < oldest {
			delete(r.unclaimed, pid)
		}
	}
}

// Done is closed when the process has been reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how the process ended; valid after Done.
func (p *Process) Status() syscall.WaitStatus { return p.status }

// WhileAlive calls f unless the process has been reaped, and keeps it from
// being reaped meanwhile, so that its pid (also its process group and session)
// still means this process. f must not block.
func (p *Process) WhileAlive(f func() error) error {
	p.reaper.mu.Lock()
	defer p.reaper.mu.Unlock()
	if p.gone {
		return ErrGone
	}
	return f()
}
