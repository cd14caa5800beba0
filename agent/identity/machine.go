package identity

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"space/agent/accounts"
	"space/agent/trust"
)

// Machine says how far an identity may reach. In a guest it is the machine's
// own; a server on a shared host leaves clock, entropy and names alone.
type Machine struct {
	Kernel bool         // set clock, entropy and host name
	Etc    string       // folder of hostname, hosts and machine-id; "" writes none
	BootID string       // file that tells boots apart, see boot.maskBootID; "" writes none
	Trust  *trust.Store // whom programs trust; nil leaves that alone
	Env    string       // file of the sandbox's environment, see tellEnv; "" writes none
	Run    string       // folder of what programs may read about the sandbox; "" writes none
	Events string       // address that programs may send events to; "" tells none
}

// tellKernel sets what the kernel knows, in the order of urgency: a program
// woken by the restore must not draw its template's random numbers or read its
// time.
func (m Machine) tellKernel(random *generator, f *Facts) error {
	if !m.Kernel {
		return nil
	}
	if err := m.refresh(random, f.TimeUnixNS, f.Entropy); err != nil {
		return err
	}
	if err := syscall.Sethostname([]byte(f.Hostname)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	return nil
}

// refresh puts right what a machine that stood still has lost.
func (m Machine) refresh(random *generator, unixNS int64, entropy []byte) error {
	if !m.Kernel {
		return nil
	}
	if len(entropy) > 0 {
		if err := random.add(entropy); err != nil {
			return fmt.Errorf("entropy: %w", err)
		}
	}
	if unixNS > 0 {
		if err := setClock(unixNS); err != nil {
			return fmt.Errorf("clock: %w", err)
		}
	}
	return nil
}

// tellRun writes the whereabouts for programs that do not inherit the environment.
func (m Machine) tellRun(f *Facts) (warnings []string) {
	if m.Run == "" {
		return nil
	}
	for name, value := range m.whereabouts(f) {
		if err := WriteIfChanged(filepath.Join(m.Run, "e2b", "."+name), []byte(value)); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings
}

// tellFiles writes the names into /etc. These files are the user's too: a full
// disk, or a folder where hosts should be, must not keep a sandbox from coming
// back, so what fails is returned to be reported and the rest is done.
func (m Machine) tellFiles(f *Facts) (warnings []string) {
	if m.Etc == "" {
		return nil
	}
	write := func(name string, content []byte) {
		if err := WriteIfChanged(filepath.Join(m.Etc, name), content); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	write("hostname", []byte(f.Hostname+"\n"))
	write("machine-id", []byte(machineID(f.SandboxID)+"\n"))
	old, err := os.ReadFile(filepath.Join(m.Etc, "hosts"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return append(warnings, err.Error())
	}
	write("hosts", hostsFile(old, f.Hostname))
	if m.Trust != nil && f.CAPEM != "" {
		if err := m.Trust.Install([]byte(f.CAPEM)); err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings
}

// tellBootID gives a copy of a machine a boot of its own: the kernel's id is that
// of the machine it was copied from, and what is to be unique is made from it.
func (m Machine) tellBootID() error {
	if m.BootID == "" {
		return nil
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a random UUID, RFC 9562
	text := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	return overwrite(m.BootID, []byte(text), int64(len(text)))
}

// tellEnv writes the environment that commands begin with, NAME=VALUE and a NUL
// each as in /proc/PID/environ: a program that was running when its machine was
// copied has no other way to learn the copy's. It is the default user's, as are
// the commands that have it.
func (m Machine) tellEnv(env map[string]string) error {
	if m.Env == "" {
		return nil
	}
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	sort.Strings(names)
	var content bytes.Buffer
	for _, name := range names {
		content.WriteString(name + "=" + env[name] + "\x00")
	}
	user, err := accounts.Resolve("")
	if err != nil {
		return err
	}
	fresh := m.Env + ".space-new"
	if err := os.MkdirAll(filepath.Dir(m.Env), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(fresh, content.Bytes(), 0o600); err != nil {
		return err
	}
	if err := os.Chown(fresh, int(user.UID), int(user.GID)); err != nil {
		return err
	}
	return os.Rename(fresh, m.Env)
}

// environment is the sandbox's with, below it, where programs are and, if there
// is a root, what makes them trust it.
func (m Machine) environment(f *Facts) map[string]string {
	env := m.whereabouts(f)
	if m.Trust != nil && f.CAPEM != "" {
		for name, value := range m.Trust.Env() {
			env[name] = value
		}
	}
	for name, value := range f.Env {
		env[name] = value
	}
	return env
}

// whereabouts are what programs written for E2B ask for, as variables and as files.
func (m Machine) whereabouts(f *Facts) map[string]string {
	told := map[string]string{"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": f.SandboxID}
	if f.TemplateID != "" {
		told["E2B_TEMPLATE_ID"] = f.TemplateID
	}
	if m.Events != "" {
		told["E2B_EVENTS_ADDRESS"] = m.Events
	}
	return told
}

func setClock(unixNS int64) error {
	const clockRealtime = 0
	now := syscall.NsecToTimespec(unixNS)
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_SETTIME, clockRealtime, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		return fmt.Errorf("%v: %w", time.Unix(0, unixNS).UTC(), errno)
	}
	return nil
}

// ownName is the address Debian gives a machine's own name in /etc/hosts.
const ownName = "127.0.1.1"

// hostsFile keeps what the image says, makes sure of localhost, and replaces
// the line of the machine's own name.
func hostsFile(old []byte, hostname string) []byte {
	var out bytes.Buffer
	localhost := false
	for _, line := range strings.SplitAfter(string(old), "\n") {
		fields := strings.Fields(strings.SplitN(line, "#", 2)[0])
		if len(fields) > 0 && fields[0] == ownName {
			continue
		}
		if len(fields) > 1 && fields[0] == "127.0.0.1" {
			for _, name := range fields[1:] {
				localhost = localhost || name == "localhost"
			}
		}
		out.WriteString(line)
	}
	if n := out.Len(); n > 0 && out.Bytes()[n-1] != '\n' {
		out.WriteByte('\n')
	}
	if !localhost {
		out.WriteString("127.0.0.1\tlocalhost\n")
	}
	fmt.Fprintf(&out, "%s\t%s\n", ownName, hostname)
	return out.Bytes()
}

// WriteIfChanged makes path a plain file with content, in the place of a
// symlink if there is one: images link such files to services that do not run
// here. A file that is right already is not written. One that is there is
// changed in place, by one write: a new file would cost more than all the rest
// of a restore, and no program can look, for none runs yet.
func WriteIfChanged(path string, content []byte) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, content) {
			return nil
		}
		return overwrite(path, content, info.Size())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	fresh := path + ".space-new"
	if err := os.WriteFile(fresh, content, 0o644); err != nil {
		os.Remove(fresh)
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		os.Remove(fresh)
		return err
	}
	return nil
}

func overwrite(path string, content []byte, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return err
	}
	if int64(len(content)) < size {
		return file.Truncate(int64(len(content)))
	}
	return nil
}
