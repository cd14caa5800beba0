package identity

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"space/agent/trust"
)

func facts(id string) Facts {
	return Facts{SandboxID: id, Hostname: id + "-host", TimeUnixNS: 1, Entropy: make([]byte, 32)}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestNamesAreWritten(t *testing.T) {
	etc := t.TempDir()
	id := New(Machine{Etc: etc})
	os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost\n127.0.1.1 template\n10.0.0.1 db # 127.0.1.1"), 0o644)
	os.Symlink("/proc/sys/kernel/hostname", filepath.Join(etc, "hostname"))
	for _, name := range []string{"a", "b", "b"} {
		if warnings, err := id.Apply(facts(name)); err != nil || warnings != nil {
			t.Fatal(warnings, err)
		}
		want := "127.0.0.1 localhost\n10.0.0.1 db # 127.0.1.1\n127.0.1.1\t" + name + "-host\n"
		if got := read(t, etc+"/hosts"); got != want {
			t.Errorf("%q", got)
		}
		if got := read(t, etc+"/hostname"); got != name+"-host\n" {
			t.Errorf("%q", got)
		}
		if got := read(t, etc+"/machine-id"); got != machineID(name)+"\n" || len(got) != 33 {
			t.Errorf("%q", got)
		}
	}
	if machineID("a") == machineID("b") {
		t.Error("two sandboxes have one machine id")
	}
}

// A program that was copied with its machine finds the copy's environment there.
func TestTheEnvironmentIsWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run", "environment")
	id := New(Machine{Env: file})
	for _, env := range []map[string]string{{"B": "two words\nand a line", "A": ""}, {"C": "c"}, nil} {
		told := facts("a")
		told.Env = env
		if warnings, err := id.Apply(told); err != nil || warnings != nil {
			t.Fatal(warnings, err)
		}
		want := ""
		for _, name := range []string{"A", "B", "C"} {
			if value, there := env[name]; there {
				want += name + "=" + value + "\x00"
			}
		}
		want += "E2B_SANDBOX=true\x00E2B_SANDBOX_ID=a\x00"
		if got := read(t, file); got != want {
			t.Errorf("%q", got)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Error(info, err)
		}
	}
}

// Programs written for E2B find where they are, in variables that the sandbox's
// own come before, and in files.
func TestWhereaboutsAreTold(t *testing.T) {
	run := t.TempDir()
	id := New(Machine{Run: run, Events: "http://host"})
	told := facts("a")
	told.TemplateID, told.Env = "base", map[string]string{"E2B_SANDBOX": "mine"}
	if warnings, err := id.Apply(told); err != nil || warnings != nil {
		t.Fatal(warnings, err)
	}
	env := id.Env()
	for name, want := range map[string]string{"SANDBOX": "true", "SANDBOX_ID": "a", "TEMPLATE_ID": "base", "EVENTS_ADDRESS": "http://host"} {
		if got := read(t, filepath.Join(run, "e2b/.E2B_"+name)); got != want {
			t.Errorf("%s is %q", name, got)
		}
		if name != "SANDBOX" && env["E2B_"+name] != want {
			t.Errorf("%s is %q", name, env["E2B_"+name])
		}
	}
	if env["E2B_SANDBOX"] != "mine" || len(env) != 4 {
		t.Error(env)
	}
}

// All copies of a snapshot have their kernel's boot id in common.
func TestACopyHasABootOfItsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	const first = "0f0f0f0f-1111-4222-8333-444444444444\n"
	os.WriteFile(file, []byte(first), 0o644)
	id := New(Machine{BootID: file})
	told := func(name string) string {
		if warnings, err := id.Apply(facts(name)); err != nil || warnings != nil {
			t.Fatal(warnings, err)
		}
		return read(t, file)
	}
	if told("a") != first || told("a") != first {
		t.Error("the same machine has another boot")
	}
	copied := told("b")
	if copied == first || told("b") != copied || told("a") == first {
		t.Error("a copy has the boot of another machine")
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\n$`).MatchString(copied) {
		t.Errorf("%q", copied)
	}
}

func TestTheRootIsTrusted(t *testing.T) {
	etc := t.TempDir()
	store := trust.System(etc)
	id := New(Machine{Etc: etc, Trust: &store})
	told := facts("a")
	told.Env = map[string]string{"SSL_CERT_FILE": "/the/users/own", "X": "y"}
	told.CAPEM = "no certificate"
	if warnings, err := id.Apply(told); err != nil || len(warnings) != 1 {
		t.Fatal(warnings, err)
	}
	if env := id.Env(); env["SSL_CERT_FILE"] != "/the/users/own" || env["X"] != "y" || env["GIT_SSL_CAINFO"] == "" {
		t.Error(env)
	}
	told.CAPEM = ""
	if warnings, err := id.Apply(told); err != nil || warnings != nil || id.Env()["GIT_SSL_CAINFO"] != "" {
		t.Error(warnings, err, id.Env())
	}
}

func TestHostsFile(t *testing.T) {
	for old, want := range map[string]string{
		"":                         "127.0.0.1\tlocalhost\n127.0.1.1\tme\n",
		"# 127.0.0.1 localhost\n":  "# 127.0.0.1 localhost\n127.0.0.1\tlocalhost\n127.0.1.1\tme\n",
		"127.0.0.1 x localhost":    "127.0.0.1 x localhost\n127.0.1.1\tme\n",
		"127.0.1.1 a\n127.0.1.1 b": "127.0.0.1\tlocalhost\n127.0.1.1\tme\n",
	} {
		if got := string(hostsFile([]byte(old), "me")); got != want {
			t.Errorf("%q: %q", old, got)
		}
	}
}

// A user's own mess in /etc must not keep the sandbox from coming back.
func TestUnwritableNamesAreReported(t *testing.T) {
	etc := t.TempDir()
	os.Mkdir(filepath.Join(etc, "hosts"), 0o755)
	os.Mkdir(filepath.Join(etc, "hostname"), 0o755)
	id := New(Machine{Etc: etc})
	warnings, err := id.Apply(facts("a"))
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[0], "hostname") {
		t.Fatal(warnings, err)
	}
	if id.SandboxID() != "a" || read(t, etc+"/machine-id") == "" {
		t.Error("the rest was not done")
	}
	if left, _ := filepath.Glob(etc + "/*.space-new"); left != nil {
		t.Error(left)
	}
}

func TestFileThatIsRightIsNotWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "f")
	write := func(content string) os.FileInfo {
		if err := WriteIfChanged(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(path)
		return info
	}
	first := write("x")
	if second := write("x"); !os.SameFile(first, second) {
		t.Error("written again")
	}
	for _, content := range []string{"y", "longer", "short", ""} {
		if write(content); read(t, path) != content {
			t.Errorf("not written: %q", read(t, path))
		}
	}
}
