package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (a *agent) service() map[string]any {
	a.Helper()
	service, _ := a.activity()["service"].(map[string]any)
	return service
}

// The start hook begins with the boot, once, as root and before anybody asks
// whether the image is ready; it is listed with its output, and keeps nothing
// from being idle.
func TestServiceStartsWithTheBoot(t *testing.T) {
	a := bareAgent(t)
	starts := filepath.Join(t.TempDir(), "starts")
	a.script("start", "#!/bin/sh\necho \"$SPACE_REASON as $(id -u) in $SANDBOX\" | tee -a "+starts+"\nexec sleep 1000\n")
	a.init(map[string]any{"reason": "boot"})
	a.script("ready", "#!/bin/sh\ntest -e "+starts+"\n")
	if r := a.do("POST", a.internal+"/ready", map[string]any{"timeout_s": 10}); r.status != 200 {
		t.Fatal(r)
	}
	a.init(map[string]any{"reason": "fork"})
	a.init(map[string]any{"reason": "boot"})
	a.eventually("it runs", func() bool { return a.service()["running"] == true })
	activity := a.activity()
	if activity["foreground_commands"] != 0.0 || activity["running_commands"] != 1.0 {
		t.Error("a service is no command in the foreground:", activity)
	}
	id := a.service()["command_id"].(string)
	a.eventually("its output is kept", func() bool { return a.output(id, "?follow=0").rest(0).data == "boot as 0 in yes\n" })
	if text, err := os.ReadFile(starts); err != nil || string(text) != "boot as 0 in yes\n" {
		t.Errorf("started more than once: %q %v", text, err)
	}
	if a.service()["starts"] != 1.0 {
		t.Error(a.service())
	}
}

// A service that fails is started again, and its end is told; one that exits
// with 0, or whose end somebody asked for, has ended.
func TestServiceIsStartedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		then   string // what the second start does
		finish func(a *agent, id string)
	}{
		"exits": {"exit 0", func(*agent, string) {}},
		"is deleted": {"exec sleep 1000", func(a *agent, id string) {
			a.do("DELETE", "/v1/commands/"+id, nil)
		}},
		"is told to end": {"exec sleep 1000", func(a *agent, id string) {
			a.do("POST", "/v1/commands/"+id+"/signal", map[string]any{"signal": "TERM"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := bareAgent(t)
			mark := filepath.Join(t.TempDir(), "mark")
			a.script("start", fmt.Sprintf("#!/bin/sh\n[ -e %s ] && %s\necho dies; touch %s; kill -9 $$\n", mark, c.then, mark))
			a.init(map[string]any{})
			first := ""
			a.eventually("it is told of", func() bool {
				first, _ = a.service()["command_id"].(string)
				return first != ""
			})
			a.eventually("it is started again", func() bool { return a.service()["starts"] == 2.0 })
			if info := a.do("GET", "/v1/commands/"+first, nil).object(); info["signal"] != "SIGKILL" || info["running"] != false {
				t.Error("a service's death can be looked up:", info)
			}
			c.finish(a, a.service()["command_id"].(string))
			a.eventually("it has ended", func() bool { return a.service()["running"] == false })
			a.eventually("nobody keeps it", func() bool { return a.service()["ended"] == true })
			if a.service()["starts"] != 2.0 {
				t.Error(a.service())
			}
		})
	}
}

func TestServiceThatCannotBeStarted(t *testing.T) {
	a := newAgent(t)
	if a.service() != nil {
		t.Error("an image without a service:", a.service())
	}
	b := bareAgent(t)
	b.script("start", "not a program")
	b.init(map[string]any{})
	b.eventually("it is told of", func() bool {
		text, _ := b.service()["error"].(string)
		return strings.Contains(text, "start")
	})
	if b.service()["running"] != false || b.service()["starts"] != 0.0 {
		t.Error(b.service())
	}
}

// An image whose service fails at once is not saved as a template.
func TestServiceThatFailsIsNotReady(t *testing.T) {
	a := bareAgent(t)
	a.script("start", "#!/bin/sh\necho no such thing\nexit 127\n")
	a.init(map[string]any{})
	a.eventually("it has failed", func() bool { return a.service()["failure"] != "" })
	r := a.do("POST", a.internal+"/ready", map[string]any{"timeout_s": 10})
	a.refused(r, 503, "not_ready")
	if detail := r.object()["detail"].(string); !strings.Contains(detail, "/start exited with 127; the last thing it said: no such thing") {
		t.Error(detail)
	}
}
