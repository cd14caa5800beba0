package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func root(t *testing.T, name string) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	wish := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, Organization: []string{"Über  Uns"}},
		NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, wish, wish, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func system(t *testing.T) Store {
	t.Helper()
	s := System(t.TempDir())
	if err := os.MkdirAll(s.Hashed, 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestInstallsOnceAndReplaces(t *testing.T) {
	s := system(t)
	others := string(root(t, "another"))
	if err := os.WriteFile(s.Bundles[0], []byte(strings.TrimSpace(others)), 0o644); err != nil {
		t.Fatal(err)
	}
	first, second := root(t, "first"), root(t, "second")
	for _, step := range [][]byte{first, first, second, first} {
		if err := s.Install(step); err != nil {
			t.Fatal(err)
		}
		if got := read(t, s.Bundles[0]); got != others+string(step) {
			t.Errorf("bundle: %q", got)
		}
		if got := read(t, s.Own); got != string(step) {
			t.Errorf("own: %q", got)
		}
	}
	if s.Env()["SSL_CERT_FILE"] != s.Bundles[0] || s.Env()["NODE_EXTRA_CA_CERTS"] != s.Own {
		t.Error(s.Env())
	}
}

func TestTheSameRootIsNotWrittenAgain(t *testing.T) {
	s, text := system(t), root(t, "same")
	if err := s.Install(text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Bundles[0], []byte("the user's own"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(text); err != nil {
		t.Fatal(err)
	}
	if got := read(t, s.Bundles[0]); got != "the user's own" {
		t.Errorf("%q", got)
	}
}

func TestWhatWasHalfDoneIsFinished(t *testing.T) {
	s, text := system(t), root(t, "half")
	if err := s.Install(text); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.Own); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(text); err != nil {
		t.Fatal(err)
	}
	if got := read(t, s.Bundles[0]); got != string(text) {
		t.Errorf("%q", got)
	}
}

func TestBundleBehindALinkStaysThere(t *testing.T) {
	s := system(t)
	real := filepath.Join(filepath.Dir(s.Hashed), "extracted.pem")
	if err := os.WriteFile(real, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, s.Bundles[0]); err != nil {
		t.Fatal(err)
	}
	text := root(t, "linked")
	if err := s.Install(text); err != nil {
		t.Fatal(err)
	}
	if got := read(t, real); got != string(text) {
		t.Errorf("%q", got)
	}
}

func TestRefusesWhatIsNoCertificate(t *testing.T) {
	good := root(t, "good")
	for _, bad := range []string{"", "hello", string(good) + string(good), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		s := system(t)
		if err := s.Install([]byte(bad)); err == nil {
			t.Errorf("%.40q was installed", bad)
		}
		if _, err := os.Stat(s.Own); err == nil {
			t.Errorf("%.40q is there", bad)
		}
	}
}

// openssl itself finds the root in the folder, whatever the name is written with.
func TestOpenSSLFindsItByHash(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not here")
	}
	for _, name := range []string{"Space Egress", "  ÄÖ  mixed   CASE ", "plain", "a@b.example"} {
		s, text := system(t), root(t, name)
		if err := s.Install(text); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("openssl", "x509", "-noout", "-hash", "-in", s.Own).Output()
		if err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(s.Hashed, strings.TrimSpace(string(out))+".0")
		if to, err := os.Readlink(link); err != nil || to != s.Own {
			t.Errorf("%q: %s: %v", name, link, err)
		}
	}
}

// keytool, Java's own, reads the keystore and checks its digest.
func TestJavaReadsItsKeystore(t *testing.T) {
	if _, err := exec.LookPath("keytool"); err != nil {
		t.Skip("Java is not here")
	}
	s := system(t)
	if err := os.MkdirAll(filepath.Dir(s.Java), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Java, []byte("the system's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Bundles[0], bytes.Join([][]byte{root(t, "one"), root(t, "two")}, nil), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(root(t, "ours")); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("keytool", "-list", "-keystore", s.Java, "-storepass", javaPassword).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "3 entries") {
		t.Errorf("%v: %s", err, out)
	}
}

func BenchmarkTheSameRoot(b *testing.B) {
	s := System(b.TempDir())
	os.MkdirAll(s.Hashed, 0o755)
	text := []byte(fmt.Sprintf("-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n", strings.Repeat("A", 800)))
	os.MkdirAll(filepath.Dir(s.Own), 0o755)
	os.WriteFile(s.Own, text, 0o644)
	for i := 0; i < b.N; i++ {
		if err := s.Install(text); err != nil {
			b.Fatal(err)
		}
	}
}
