package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"space/agent/fault"
	"space/agent/orders"
)

// warmCommandS is how long one command may take. Some milliseconds are usual, a
// second where the processor is emulated and everything new to it.
const warmCommandS = 10

// warmCommands are the forms that commands come in. An image need not have what
// they take: a refusal is no failure here.
var warmCommands = []commandRequest{
	{Cmd: "echo out; echo err >&2"},
	{Args: []string{"true"}},
	{Args: []string{"true"}, User: "root", Stdin: true},
}

// warmReads are what clients ask besides.
var warmReads = []string{"/v1/health", "/v1/commands", "/v1/files/stat?path=/etc/passwd", "/v1/files?path=/etc/passwd"}

type warmRequest struct {
	Commands []string `json:"commands"` // for the login shell, besides our own
}

// warm does what a user will do first: requests, a login shell, a program, its
// output and its end. A machine that is saved after that, or handed out, has in
// memory, and translated if emulated, what a first command needs. It leaves no
// command and holds no memory it does not need.
func (in *Internal) warm(w http.ResponseWriter, r *http.Request, _ string) error {
	var body warmRequest
	if r.ContentLength != 0 {
		if err := readJSON(w, r, &body); err != nil {
			return err
		}
	}
	if in.guest.Frozen() {
		return fault.New(http.StatusConflict, "frozen", "thaw the sandbox first: its programs cannot run")
	}
	commands := append([]commandRequest{}, warmCommands...)
	for _, cmd := range body.Commands {
		commands = append(commands, commandRequest{Cmd: cmd})
	}
	began := time.Now()
	took, err := in.public.warmUp(commands)
	if err != nil {
		return fault.New(http.StatusServiceUnavailable, "cannot_warm", "the agent could not talk to itself: %v", err).Because(err)
	}
	if err := in.rehearse(); err != nil {
		return fault.New(http.StatusServiceUnavailable, "cannot_warm", "the agent could not order itself about: %v", err).Because(err)
	}
	debug.FreeOSMemory()
	return writeJSON(w, http.StatusOK, map[string]any{
		"warm_ms": milliseconds(time.Since(began)), "command_ms": took,
	})
}

// rehearsed are orders like the worker's.
var rehearsed = []string{"freeze reason=pause hook_timeout_ms=0 sync=0 fsfreeze=0 limit_ms=10000\n", "thaw reason=pause\n"}

// rehearse does what the worker asks for in its turn: it freezes for a moment,
// by orders, and looks at what goes on.
func (in *Internal) rehearse() error {
	us, worker, err := connectedPair()
	if err != nil {
		return err
	}
	defer worker.Close()
	go orders.Serve(us, in.carry)
	worker.SetDeadline(time.Now().Add(selfPatience))
	answers := bufio.NewReader(worker)
	for _, order := range rehearsed {
		if _, err := worker.Write([]byte(order)); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err != nil {
			return err
		}
		if !strings.HasPrefix(answer, orders.Done) {
			return errors.New(strings.TrimSpace(answer))
		}
	}
	_, err = in.connections()
	return err
}

// warmUp returns how long each command took, in milliseconds.
func (p *Public) warmUp(commands []commandRequest) (took []float64, err error) {
	self, err := p.connectSelf()
	if err != nil {
		return nil, err
	}
	defer self.close()
	timeout := float64(warmCommandS)
	for _, command := range commands {
		command.TimeoutS = &timeout
		body, err := json.Marshal(command)
		if err != nil {
			return nil, err
		}
		at := time.Now()
		answer, err := self.ask("POST", "/v1/commands", body)
		if err != nil {
			return nil, err
		}
		took = append(took, milliseconds(time.Since(at)))
		if id := answer.Get("X-Command-Id"); id != "" {
			if _, err := self.ask("DELETE", "/v1/commands/"+id, nil); err != nil {
				return nil, err
			}
		}
	}
	for _, path := range warmReads {
		if _, err := self.ask("GET", path, nil); err != nil {
			return nil, err
		}
	}
	return took, nil
}
