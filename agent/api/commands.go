package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"space/agent/command"
	"space/agent/fault"
	"space/agent/peer"
)

// commandRequest is the body of POST /commands.
type commandRequest struct {
	Cmd              string            `json:"cmd"`
	Args             []string          `json:"args"`
	Env              map[string]string `json:"env"`
	Cwd              string            `json:"cwd"`
	User             string            `json:"user"`
	TimeoutS         *float64          `json:"timeout_s"`
	Stdin            bool              `json:"stdin"`
	PTY              *sizeRequest      `json:"pty"`
	Detach           bool              `json:"detach"`
	OutputLimitBytes *int64            `json:"output_limit_bytes"`
}

type sizeRequest struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

func (s sizeRequest) size(field string) (command.Size, error) {
	if s.Cols < 1 || s.Cols > 65535 || s.Rows < 1 || s.Rows > 65535 {
		return command.Size{}, fault.Invalid(field, "cols and rows must be from 1 to 65535")
	}
	return command.Size{Cols: uint16(s.Cols), Rows: uint16(s.Rows)}, nil
}

func (q *commandRequest) spec() (command.Spec, error) {
	s := command.Spec{
		Cmd: q.Cmd, Args: q.Args, Env: q.Env, Cwd: q.Cwd, User: q.User,
		Stdin: q.Stdin, Detach: q.Detach, OutputLimit: command.DefaultOutputLimit,
	}
	if q.OutputLimitBytes != nil {
		s.OutputLimit = *q.OutputLimitBytes
	}
	if q.TimeoutS != nil {
		if *q.TimeoutS <= 0 {
			return s, fault.Invalid("timeout_s", "must be more than 0; leave it out for none")
		}
		s.Timeout = command.Seconds(*q.TimeoutS)
	}
	if q.PTY != nil {
		size, err := q.PTY.size("pty")
		if err != nil {
			return s, err
		}
		s.PTY = &size
	}
	return s, nil
}

func (p *Public) startCommand(w http.ResponseWriter, r *http.Request, _ string) error {
	var body commandRequest
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	spec, err := body.spec()
	if err != nil {
		return err
	}
	c, err := p.commands.Start(r.Context(), spec)
	if err != nil {
		return err
	}
	if spec.Detach {
		w.Header().Set("X-Command-Id", c.ID)
		return writeJSON(w, http.StatusCreated, map[string]any{"command_id": c.ID, "pid": c.PID})
	}
	defer c.Attach()()
	s := newStream(w, c, p.keepalive)
	s.start(c)
	s.copy(r, c, 0, true)
	return nil
}

// commandInfo is a command as the lists show it.
type commandInfo struct {
	CommandID   string    `json:"command_id"`
	PID         int       `json:"pid"`
	Cmd         *string   `json:"cmd"`
	Args        []string  `json:"args"`
	User        string    `json:"user"`
	Cwd         string    `json:"cwd"`
	PTY         bool      `json:"pty"`
	Detached    bool      `json:"detached"`
	StartedAt   time.Time `json:"started_at"`
	Running     bool      `json:"running"`
	Code        *int      `json:"code"`
	Signal      *string   `json:"signal"`
	TimedOut    bool      `json:"timed_out"`
	FirstOffset int64     `json:"first_offset"`
	NextOffset  int64     `json:"next_offset"`
}

func describe(c *command.Command) commandInfo {
	info := commandInfo{
		CommandID: c.ID, PID: c.PID, Cmd: orNull(c.Spec.Cmd), Args: c.Spec.Args, User: c.User, Cwd: c.Cwd,
		PTY: c.Spec.PTY != nil, Detached: c.Spec.Detach, StartedAt: c.Started.UTC(), Running: true,
	}
	if exit := c.Exit(); exit != nil {
		info.Running, info.Code, info.Signal, info.TimedOut = false, exit.Code, orNull(exit.Signal), exit.TimedOut
	}
	info.FirstOffset, info.NextOffset = c.Output.Bounds()
	return info
}

func (p *Public) listCommands(w http.ResponseWriter, _ *http.Request, _ string) error {
	list := []commandInfo{}
	for _, c := range p.commands.List() {
		list = append(list, describe(c))
	}
	return writeJSON(w, http.StatusOK, map[string]any{"commands": list})
}

func (p *Public) getCommand(w http.ResponseWriter, _ *http.Request, id string) error {
	c, err := p.commands.Get(id)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, describe(c))
}

func (p *Public) readOutput(w http.ResponseWriter, r *http.Request, id string) error {
	c, err := p.commands.Get(id)
	if err != nil {
		return err
	}
	values, err := query(r)
	if err != nil {
		return err
	}
	follow, err := flag(values, "follow", true)
	if err != nil {
		return err
	}
	var from int64
	if text := values.Get("from"); text != "" {
		if from, err = strconv.ParseInt(text, 10, 64); err != nil || from < 0 {
			return fault.Invalid("from", "must be an offset: a whole number, 0 or more")
		}
	}
	// A running command may yet print as much: its reader waits.
	if _, next := c.Output.Bounds(); from > next && (!follow || c.Exit() != nil) {
		return fault.Invalid("from", "is beyond the end of the output, %d", next)
	}
	defer c.Attach()()
	newStream(w, c, p.keepalive).copy(r, c, from, follow)
	return nil
}

func (p *Public) writeStdin(w http.ResponseWriter, r *http.Request, id string) error {
	c, err := p.commands.Get(id)
	if err != nil {
		return err
	}
	values, err := query(r)
	if err != nil {
		return err
	}
	eof, err := flag(values, "eof", false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go peer.CancelWhenLeft(ctx, cancel)
	if err := c.WriteInput(ctx, r.Body, eof); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Public) signalCommand(w http.ResponseWriter, r *http.Request, id string) error {
	c, err := p.commands.Get(id)
	if err != nil {
		return err
	}
	var body struct {
		Signal json.RawMessage `json:"signal"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	signal, err := command.ParseSignal(body.Signal)
	if err != nil {
		return err
	}
	if err := c.Signal(signal); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Public) resizeCommand(w http.ResponseWriter, r *http.Request, id string) error {
	c, err := p.commands.Get(id)
	if err != nil {
		return err
	}
	var body sizeRequest
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	size, err := body.size("size")
	if err != nil {
		return err
	}
	if err := c.Resize(size); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Public) deleteCommand(w http.ResponseWriter, _ *http.Request, id string) error {
	if err := p.commands.Delete(id); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
