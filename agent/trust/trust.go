// Package trust makes the programs of a sandbox trust one more root
// certificate: that of the gateway through which their traffic leaves.
//
// The same root comes with every /init, and a template has it on its disk, so
// the usual case is one small file read and compared.
package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Store is where a system keeps whom it trusts.
type Store struct {
	// Own is the file of our root alone. Debian's update-ca-certificates reads
	// its folder too, so a later run keeps our root. It is written last: when it
	// says what it should, all the rest was done.
	Own string
	// Bundles are files of all roots, one after another. Those that exist get
	// ours; if none does, the first is made.
	Bundles []string
	// Hashed is a folder in which OpenSSL looks for roots by a hash of their name.
	Hashed string
	// Java is Java's keystore. It is only written where there is one.
	Java string
}

// System is the store below a root folder ("" for the running system).
func System(root string) Store {
	return Store{
		Own: root + "/usr/local/share/ca-certificates/space-gateway.crt",
		Bundles: []string{
			root + "/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch
			root + "/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
			root + "/etc/ssl/ca-bundle.pem",             // SUSE
		},
		Hashed: root + "/etc/ssl/certs",
		Java:   root + "/etc/ssl/certs/java/cacerts", // Debian's ca-certificates-java
	}
}

// Env is what programs read that do not look into the system's store. It names
// files of s, which Install has made.
func (s Store) Env() map[string]string {
	bundle := s.bundle()
	return map[string]string{
		"SSL_CERT_FILE":       bundle, // OpenSSL: Python, Ruby, PHP; Go
		"REQUESTS_CA_BUNDLE":  bundle, // Python's requests has a bundle of its own
		"PIP_CERT":            bundle,
		"CURL_CA_BUNDLE":      bundle,
		"GIT_SSL_CAINFO":      bundle,
		"AWS_CA_BUNDLE":       bundle,
		"CARGO_HTTP_CAINFO":   bundle,
		"NODE_EXTRA_CA_CERTS": s.Own, // Node has its own bundle and takes more
		"DENO_CERT":           s.Own,
	}
}

// bundle is the first that exists, or the one that is made.
func (s Store) bundle() string {
	for _, path := range s.Bundles {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return s.Bundles[0]
}

// parse checks that text is one certificate in PEM.
func parse(text []byte) (*x509.Certificate, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("must be one certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// Install makes text, one certificate in PEM, trusted, in the place of the one
// that was installed before. It does nothing when that is the same.
func (s Store) Install(text []byte) error {
	text = append(bytes.TrimSpace(text), '\n')
	former, err := os.ReadFile(s.Own)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if bytes.Equal(former, text) {
		return nil
	}
	root, err := parse(text)
	if err != nil {
		return err
	}
	for _, path := range s.Bundles {
		if _, err := os.Stat(path); err == nil || path == s.bundle() {
			if err := addToBundle(path, former, text); err != nil {
				return err
			}
		}
	}
	if err := linkByHash(s.Hashed, root, s.Own); err != nil {
		return err
	}
	if _, err := os.Stat(s.Java); err == nil {
		all, err := os.ReadFile(s.bundle())
		if err != nil {
			return err
		}
		if err := replace(s.Java, javaKeystore(all)); err != nil {
			return err
		}
	}
	return replace(s.Own, text)
}

func addToBundle(path string, former, text []byte) error {
	all, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(former) > 0 {
		all = bytes.ReplaceAll(all, former, nil)
	}
	if len(all) > 0 && all[len(all)-1] != '\n' {
		all = append(all, '\n')
	}
	if bytes.Contains(all, text) { // a run that did not get to its end, or the system's own tool
		return nil
	}
	return replace(path, append(all, text...))
}

// linkByHash makes root found in a folder that OpenSSL searches. Names that
// hash alike get numbers; a link of ours is taken over.
func linkByHash(folder string, root *x509.Certificate, file string) error {
	hash, err := nameHash(root.RawSubject)
	if err != nil {
		return err
	}
	for n := 0; n < 10; n++ {
		link := filepath.Join(folder, fmt.Sprintf("%08x.%d", hash, n))
		switch to, err := os.Readlink(link); {
		case err == nil && to == file:
			return nil
		case errors.Is(err, os.ErrNotExist):
			return os.Symlink(file, link)
		}
	}
	return fmt.Errorf("%s: all names for %08x are taken", folder, hash)
}

// replace puts content into the place of path, or of what it links to, at once.
func replace(path string, content []byte) error {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
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
