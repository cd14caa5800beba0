package orders

import (
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"space/agent/fault"
	"space/agent/hook"
)

var entropy = []byte(strings.Repeat("\xff\x00e", 16))

func TestOrdersAreUnderstood(t *testing.T) {
	whole := base64.StdEncoding.EncodeToString(entropy)
	for line, want := range map[string]Order{
		"freeze reason=pause": {Verb: Freeze, Reason: "pause", HookTimeout: 10 * time.Second, Limit: 30 * time.Second},
		"freeze limit_ms=200 reason=fork sync=1 fsfreeze=0 hook_timeout_ms=0": {
			Verb: Freeze, Reason: "fork", Sync: true, Limit: 200 * time.Millisecond},
		"freeze reason=suspend hook_timeout_ms=86400000 sync=0 fsfreeze=1 limit_ms=1": {
			Verb: Freeze, Reason: "suspend", FSFreeze: true, HookTimeout: 24 * time.Hour, Limit: time.Millisecond},
		"thaw":                 {Verb: Thaw},
		"thaw reason=snapshot": {Verb: Thaw, Reason: "snapshot"},
		"thaw time_unix_ns=9223372036854775807 entropy=" + whole: {Verb: Thaw, UnixNS: 1<<63 - 1, Entropy: entropy},
		"thaw time_unix_ns=0": {Verb: Thaw},
	} {
		got, err := Parse([]byte(line))
		if want.Verb == Thaw {
			got.HookTimeout, got.Limit = 0, 0
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %v", line, got, err)
		}
	}
}

func TestAllElseIsRefused(t *testing.T) {
	for line, detail := range map[string]string{
		"": "freeze or thaw", "melt": "melt", "freezes reason=pause": "freezes", "Freeze reason=pause": "Freeze", " thaw": "freeze or thaw",
		"thaw\r": "freeze or thaw", "\x00": "freeze or thaw", strings.Repeat("x", 1000): "freeze or thaw",
		"thaw ": "name=value", "thaw  reason=pause": "name=value", "thaw reason=pause ": "name=value", "thaw reason": "reason",
		"thaw reason=": "reason", "thaw reason=Pause": "reason", "thaw reason=pause\r": "reason", "freeze reason=boot": "reason",
		"freeze": "reason", "freeze sync=1": "reason", "freeze reason=pause reason=pause": "twice: reason",
		"thaw time_unix_ns=1 time_unix_ns=1": "twice: time_unix_ns", "thaw sync=1": "no such field: sync", "thaw =": "no such field",
		"freeze reason=pause time_unix_ns=1": "no such field: time_unix_ns", "freeze reason=pause x=1": "no such field: x",
		"thaw time_unix_ns=": "time_unix_ns", "thaw time_unix_ns=-1": "time_unix_ns", "thaw time_unix_ns=+1": "time_unix_ns",
		"thaw time_unix_ns=1e9": "time_unix_ns", "thaw time_unix_ns=9223372036854775808": "time_unix_ns",
		"thaw time_unix_ns=92233720368547758070": "time_unix_ns", "thaw time_unix_ns=٣": "time_unix_ns",
		"thaw entropy=AAA": "entropy", "thaw entropy=AA=A": "entropy", "thaw entropy=AA-_": "entropy", "thaw entropy=AAAA\r": "entropy",
		"freeze reason=pause limit_ms=0": "limit_ms", "freeze reason=pause limit_ms=86400001": "limit_ms", "freeze reason=pause limit_ms=": "limit_ms",
		"freeze reason=pause hook_timeout_ms=-1": "hook_timeout_ms", "freeze reason=pause hook_timeout_ms=0.5": "hook_timeout_ms",
		"freeze reason=pause hook_timeout_ms=NaN": "hook_timeout_ms", "freeze reason=pause hook_timeout_ms=0x1": "hook_timeout_ms",
		"freeze reason=pause sync=": "sync", "freeze reason=pause sync=true": "sync", "freeze reason=pause sync=2": "sync",
		"freeze reason=pause fsfreeze=01": "fsfreeze",
	} {
		got, err := Parse([]byte(line))
		if f := fault.From(err); err == nil || f.Status/100 != 4 || !strings.Contains(f.Detail, detail) || len(f.Detail) > 200 {
			t.Errorf("%q: %+v %v", line, got, err)
		}
	}
}

func TestAnswersAreOneLine(t *testing.T) {
	status := 3
	for want, got := range map[string][]byte{
		"done frozen=0\n":             AppendThawed(nil, false),
		"done frozen=1 took_us=312\n": AppendFrozen(nil, true, 312*time.Microsecond, hook.Report{OutputTail: "unsaid"}),
		"done frozen=0 took_us=0 hook=1 status=3 timed_out=0 output=a%20b%0A%25%FF\n": AppendFrozen(
			nil, false, 0, hook.Report{Ran: true, Status: &status, OutputTail: "a b\n%\xff"}),
		"done frozen=1 took_us=1 hook=1 status=- timed_out=1 output=\n": AppendFrozen(
			nil, true, time.Microsecond, hook.Report{Ran: true, TimedOut: true}),
		"refused 409 busy try%20again%0Asoon\n":            AppendRefused(nil, fault.New(409, "busy", "try again\nsoon")),
		"refused 500 internal the%20agent%20failed:%20x\n": AppendRefused(nil, errors.New("x")),
	} {
		if string(got) != want {
			t.Errorf("%q is not %q", got, want)
		}
	}
}
