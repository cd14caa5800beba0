package api

import (
	"path/filepath"
	"strings"
	"testing"
)

// A template is saved when its own check says so: a check that fails is run
// again, one that never succeeds is told about with its last words.
func TestReady(t *testing.T) {
	a := newAgent(t)
	ask := func(timeout float64) reply {
		return a.do("POST", a.internal+"/ready", map[string]any{"timeout_s": timeout})
	}
	if r := ask(5); r.status != 200 || r.object()["checked"] != false {
		t.Fatal("an image without a check: ", r)
	}
	count := filepath.Join(a.TempDir(), "count")
	a.script("ready", "#!/bin/sh\necho \"try $SPACE_REASON\" >>"+count+"; [ $(wc -l <"+count+") -ge 2 ]\n")
	if r := ask(30); r.status != 200 || r.object()["checked"] != true {
		t.Fatal("a check that succeeds the second time: ", r)
	}
	a.script("ready", "#!/bin/sh\necho still waiting\nexit 1\n")
	r := ask(0.6)
	a.refused(r, 503, "not_ready")
	if !strings.Contains(r.object()["detail"].(string), "still waiting") {
		t.Error(r)
	}
	a.script("ready", "#!/bin/sh\nexec sleep 60\n")
	a.refused(ask(0.3), 503, "not_ready")
	a.refused(ask(-1), 422, "invalid_argument")
}
