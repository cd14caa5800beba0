package api

import (
	"net/http"
	"os"
	"strings"
	"time"

	"space/agent/command"
	"space/agent/fault"
	"space/agent/hook"
	"space/agent/identity"
	"space/agent/mount"
)

const defaultHookTimeoutS = 10

// occasion is why /init is called, and what follows from that.
type occasion struct {
	copied bool // whoever was connected was connected to another machine
	hook   bool // the sandbox's user may want to know
}

var occasions = map[string]occasion{
	"boot":    {},
	"warm":    {copied: true},
	"restore": {copied: true, hook: true},
	"fork":    {copied: true, hook: true},
	"resume":  {hook: true},
}

type initRequest struct {
	identity.Facts
	Reason       string         `json:"reason"`
	HookTimeoutS *float64       `json:"hook_timeout_s"`
	Thaw         *bool          `json:"thaw"`
	Service      *bool          `json:"service"` // false leaves the image's service off: the image is being changed
	Volumes      []mount.Volume `json:"volumes"` // all that are to be mounted; others that are belong to another sandbox
}

// init makes this machine the one it is to be, and only then lets programs go
// on. If anything fails before that, they stay stopped.
func (in *Internal) init(w http.ResponseWriter, r *http.Request, _ string) error {
	var body initRequest
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if err := body.Validate(); err != nil {
		return err
	}
	if err := command.CheckEnv(body.Env); err != nil {
		return err
	}
	if body.Reason == "" {
		body.Reason = "boot"
	}
	occasion, known := occasions[body.Reason]
	if !known {
		return fault.Invalid("reason", "must be boot, warm, restore, fork or resume")
	}
	hookTimeout, err := patience("hook_timeout_s", body.HookTimeoutS, defaultHookTimeoutS)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := in.guest.OpenFiles(); err != nil {
		return thawFault(err)
	}
	warnings, err := in.public.identity.Apply(body.Facts)
	if err != nil {
		return err
	}
	in.volumes.Keep(body.Volumes)
	if occasion.copied {
		in.public.disconnect()
	}
	if body.Thaw == nil || *body.Thaw {
		if err := in.guest.Thaw(occasion.copied); err != nil {
			return thawFault(err)
		}
		if occasion.hook {
			in.hooks.Start(hook.PostRestore, body.Reason, hookTimeout)
		}
	}
	if !in.guest.Frozen() && (body.Service == nil || *body.Service) {
		in.hooks.Keep(body.Reason)
	}
	in.public.use.note()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return writeJSON(w, http.StatusOK, map[string]any{
		"version": in.public.version, "boot_id": strings.TrimSpace(string(boot)),
		"warnings": append([]string{}, warnings...), "init_ms": milliseconds(time.Since(began)),
	})
}

func thawFault(err error) error {
	return fault.New(http.StatusInternalServerError, "cannot_thaw", "%v", err).Because(err)
}

// patience reads an optional number of seconds, 0 or more and at most a day.
func patience(field string, s *float64, otherwise float64) (time.Duration, error) {
	if s == nil {
		s = &otherwise
	}
	if *s < 0 || *s > 86400 {
		return 0, fault.Invalid(field, "must be from 0 to 86400 seconds")
	}
	return time.Duration(*s * float64(time.Second)), nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
