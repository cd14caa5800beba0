package envd

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"space/agent/command"
	"space/agent/connect"
	"space/agent/peer"
)

// connectableAfter is how long a process that has ended can still be connected
// to, for a client that lost its connection just then. One whose end nobody was
// sent can be for as long as it is kept.
const connectableAfter = 30 * time.Second

func (h *Handler) listProcesses(*http.Request, *empty) (*processList, error) {
	list := &processList{Processes: []processInfo{}}
	for _, c := range h.commands.List() {
		if c.Exit() == nil {
			list.Processes = append(list.Processes, describe(c))
		}
	}
	return list, nil
}

func describe(c *command.Command) processInfo {
	cwd := c.Cwd
	config := processConfig{Envs: c.Env(), Cwd: &cwd}
	if c.Spec.Args != nil {
		config.Cmd, config.Args = c.Spec.Args[0], c.Spec.Args[1:]
	} else { // begun by the plain protocol
		config.Cmd, config.Args = "/bin/bash", []string{"-lc", c.Spec.Cmd}
	}
	return processInfo{Config: config, PID: c.PID, Tag: c.Spec.Tag}
}

func (h *Handler) startProcess(r *http.Request, q *startRequest, out *connect.Stream) error {
	spec, err := startSpec(r, q)
	if err != nil {
		return failure(err)
	}
	c, err := h.commands.Start(r.Context(), spec)
	if err != nil {
		return failure(err)
	}
	return h.stream(r, c, true, out)
}

func startSpec(r *http.Request, q *startRequest) (spec command.Spec, err error) {
	if q.Process == nil || q.Process.Cmd == "" {
		return spec, connect.Errorf(connect.InvalidArgument, "process.cmd must be given")
	}
	user, err := caller(r)
	if err != nil {
		return spec, err
	}
	asked := ""
	if q.Process.Cwd != nil {
		asked = *q.Process.Cwd
	}
	cwd, err := resolve(asked, user)
	if err != nil {
		return spec, err
	}
	if info, err := os.Stat(cwd); err != nil || !info.IsDir() {
		return spec, connect.Errorf(connect.InvalidArgument, "cwd '%s' does not exist", cwd)
	}
	timeout, err := connect.Timeout(r)
	if err != nil {
		return spec, err
	}
	spec = command.Spec{
		Args: append([]string{q.Process.Cmd}, q.Process.Args...), Env: q.Process.Envs, Cwd: cwd, User: user.Name,
		Timeout: timeout, Stdin: q.Stdin == nil || *q.Stdin, OutputLimit: command.DefaultOutputLimit,
	}
	if q.Tag != nil {
		spec.Tag = *q.Tag
	}
	if q.PTY != nil {
		size, err := q.PTY.size()
		if err != nil {
			return spec, err
		}
		spec.PTY = &size
	}
	return spec, nil
}

// defaultSize is a terminal's whose client does not say.
var defaultSize = command.Size{Cols: 80, Rows: 24}

func (p *ptyConfig) size() (command.Size, error) {
	switch {
	case p.Size == nil:
		return defaultSize, nil
	case p.Size.Cols > 65535 || p.Size.Rows > 65535:
		return command.Size{}, connect.Errorf(connect.InvalidArgument, "pty.size: cols and rows must be from 0 to 65535")
	}
	return command.Size{Cols: uint16(p.Size.Cols), Rows: uint16(p.Size.Rows)}, nil
}

func (h *Handler) connectProcess(r *http.Request, q *selectRequest, out *connect.Stream) error {
	c, err := h.find(q.Process, func(c *command.Command) bool {
		exit := c.Exit()
		return exit == nil || time.Since(exit.At) < connectableAfter || !c.Told()
	})
	if err != nil {
		return err
	}
	return h.stream(r, c, false, out)
}

// running finds a process that can be told something.
func (h *Handler) running(s *selector) (*command.Command, error) {
	return h.find(s, func(c *command.Command) bool { return c.Exit() == nil })
}

func (h *Handler) find(s *selector, state func(*command.Command) bool) (*command.Command, error) {
	var named func(*command.Command) bool
	switch {
	case s == nil || (s.PID == nil) == (s.Tag == nil):
		return nil, connect.Errorf(connect.InvalidArgument, "process: give either pid or tag")
	case s.PID != nil:
		named = func(c *command.Command) bool { return c.PID == int(*s.PID) }
	default:
		named = func(c *command.Command) bool { return c.Spec.Tag == *s.Tag && *s.Tag != "" }
	}
	if c := h.commands.Latest(func(c *command.Command) bool { return named(c) && state(c) }); c != nil {
		return c, nil
	}
	if s.PID != nil {
		return nil, connect.Errorf(connect.NotFound, "process with pid %d not found", *s.PID)
	}
	return nil, connect.Errorf(connect.NotFound, "process with tag %s not found", *s.Tag)
}

func (h *Handler) updateProcess(_ *http.Request, q *updateRequest) (*empty, error) {
	c, err := h.running(q.Process)
	if err != nil {
		return nil, err
	}
	if q.PTY != nil && q.PTY.Size != nil {
		size, err := q.PTY.size()
		if err != nil {
			return nil, err
		}
		if err := c.Resize(size); err != nil {
			return nil, failure(err)
		}
	}
	return &empty{}, nil
}

func (h *Handler) sendInput(r *http.Request, q *inputRequest) (*empty, error) {
	c, err := h.running(q.Process)
	if err != nil {
		return nil, err
	}
	return &empty{}, feed(r.Context(), c, q.Input)
}

// streamInput writes what comes, in its order, until the client ends it. While
// the process does not read, nothing is read from the client either.
func (h *Handler) streamInput(r *http.Request, in *connect.Receiver[streamInputRequest]) (*empty, error) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go peer.CancelWhenLeft(ctx, cancel)
	var c *command.Command
	for {
		q, err := in.Next()
		switch {
		case err == io.EOF:
			return &empty{}, nil
		case err != nil:
			return nil, err
		case q.Start != nil:
			c, err = h.running(q.Start.Process)
		case q.Data != nil && c == nil:
			err = connect.Errorf(connect.InvalidArgument, "the first message must be start")
		case q.Data != nil:
			err = feed(ctx, c, q.Data.Input)
		case q.Keepalive == nil:
			err = connect.Errorf(connect.Unimplemented, "the message has no event that is known here")
		}
		if err != nil {
			return nil, err
		}
	}
}

// feed writes to stdin or terminal, whichever the process has.
func feed(ctx context.Context, c *command.Command, in *processInput) error {
	var data []byte
	switch terminal := c.Spec.PTY != nil; {
	case in == nil || (in.Stdin == nil) == (in.PTY == nil):
		return connect.Errorf(connect.InvalidArgument, "input: give either stdin or pty")
	case in.PTY != nil && !terminal:
		return connect.Errorf(connect.FailedPrecondition, "the process has no terminal; write to its stdin")
	case in.Stdin != nil && terminal:
		return connect.Errorf(connect.FailedPrecondition, "the process has a terminal; write to its pty")
	case in.PTY != nil:
		data = *in.PTY
	default:
		data = *in.Stdin
	}
	return failure(c.WriteInput(ctx, bytes.NewReader(data), false))
}

func (h *Handler) sendSignal(_ *http.Request, q *signalRequest) (*empty, error) {
	c, err := h.running(q.Process)
	if err != nil {
		return nil, err
	}
	switch s := syscall.Signal(q.Signal); s {
	case syscall.SIGKILL:
		c.Kill()
	case syscall.SIGTERM:
		err = c.Signal(s)
	default:
		err = connect.Errorf(connect.Unimplemented, "signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")
	}
	return &empty{}, failure(err)
}

func (h *Handler) closeStdin(r *http.Request, q *selectRequest) (*empty, error) {
	c, err := h.running(q.Process)
	if err != nil {
		return nil, err
	}
	if c.Spec.PTY != nil {
		return nil, connect.Errorf(connect.FailedPrecondition, "cannot close stdin for PTY process: send Ctrl+D (0x04) instead")
	}
	if !c.Spec.Stdin {
		return &empty{}, nil // it is closed
	}
	return &empty{}, failure(c.WriteInput(r.Context(), bytes.NewReader(nil), true))
}
