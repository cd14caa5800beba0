package hook

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"space/agent/command"
)

// serviceOutput is how much of what the start hook prints is kept, in bytes: the
// newest.
const serviceOutput = 256 << 10

// A service that fails is started again after a pause, which doubles each time;
// one that had run for as long as steadyRun begins with the shortest again.
const (
	firstPause = time.Second
	longPause  = 30 * time.Second
	steadyRun  = time.Minute
)

// Service is what the start hook left running, and how it does.
type Service struct {
	Running   bool   `json:"running"`
	CommandID string `json:"command_id"` // of the newest start; "" before the first
	Starts    int    `json:"starts"`
	Error     string `json:"error"`   // why the last start failed, "" if it did not
	Failure   string `json:"failure"` // how it failed last, with its last words; "" if it never did
	Ended     bool   `json:"ended"`   // it will not be started again
}

// keeper starts a hook again when it fails.
type keeper struct {
	once sync.Once
	mu   sync.Mutex
	told *Service
}

// Keep runs the start hook in the background, once for each life of the agent,
// and so for each boot: a copy of the machine has it running already. It is a
// detached command that the list shows with its output. When it exits with 0, or
// somebody asks for its end through the API, that is its end; when it fails in
// any other way it is started again.
func (r *Runner) Keep(reason string) {
	r.service.once.Do(func() {
		path := filepath.Join(r.dir, Start)
		if !executable(path) {
			return
		}
		r.service.tell(func(*Service) {})
		spec := specOf(path, reason, serviceOutput)
		spec.Detach = true
		go r.keep(spec)
	})
}

// Service tells of the start hook, nil where there is none.
func (r *Runner) Service() *Service {
	r.service.mu.Lock()
	defer r.service.mu.Unlock()
	if r.service.told == nil {
		return nil
	}
	told := *r.service.told
	return &told
}

func (r *Runner) keep(spec command.Spec) {
	for pause := firstPause; ; pause = longer(pause) {
		began := time.Now()
		c, err := r.commands.Start(context.Background(), spec)
		if err != nil {
			r.service.tell(func(s *Service) { s.Error, s.Failure = err.Error(), err.Error() })
		} else {
			r.service.tell(func(s *Service) { s.Running, s.CommandID, s.Error, s.Starts = true, c.ID, "", s.Starts+1 })
			<-c.Finished()
			if code := c.Exit().Code; c.EndAsked() || code != nil && *code == 0 {
				r.service.tell(func(s *Service) { s.Running, s.Ended = false, true })
				return
			}
			r.service.tell(func(s *Service) { s.Running, s.Failure = false, failureOf(c) })
		}
		if time.Since(began) >= steadyRun {
			pause = firstPause
		}
		time.Sleep(pause)
	}
}

// failureOf says how a command failed, and the last of what it printed.
func failureOf(c *command.Command) string {
	how := "was ended by " + c.Exit().Signal
	if code := c.Exit().Code; code != nil {
		how = "exited with " + strconv.Itoa(*code)
	}
	words := printed(c)
	if len(words) > maxTail {
		words = strings.ToValidUTF8(words[len(words)-maxTail:], "")
	}
	return how + "; the last thing it said: " + strings.TrimSpace(words)
}

func (k *keeper) tell(change func(*Service)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.told == nil {
		k.told = &Service{}
	}
	change(k.told)
}

func longer(pause time.Duration) time.Duration {
	if pause *= 2; pause < longPause {
		return pause
	}
	return longPause
}

// executable reports whether there is a hook to run.
func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
