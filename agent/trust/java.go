package trust

import (
	"bytes"
	"crypto/sha1"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"time"
	"unicode/utf16"
)

// The format of Java's first keystore ("JKS"), which every Java still reads, whatever the keystore's type is set to:
// sun.security.provider.JavaKeyStore in the JDK's sources.
const (
	javaMagic       = 0xFEEDFEED
	javaVersion     = 2
	javaCertificate = 2
	// The password is public and the same on every system: it only finds damage.
	javaPassword = "changeit"
	javaPepper   = "Mighty Aphrodite"
)

// javaKeystore returns a keystore that trusts every certificate in a bundle.
func javaKeystore(bundle []byte) []byte {
	var certificates [][]byte
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		if block.Type == "CERTIFICATE" {
			certificates = append(certificates, block.Bytes)
		}
	}
	var out bytes.Buffer
	number := func(n any) { binary.Write(&out, binary.BigEndian, n) } // to memory, cannot fail
	text := func(s string) {
		number(uint16(len(s)))
		out.WriteString(s)
	}
	number(uint32(javaMagic))
	number(uint32(javaVersion))
	number(uint32(len(certificates)))
	for i, certificate := range certificates {
		number(uint32(javaCertificate))
		text(fmt.Sprintf("root-%d", i))
		number(time.Now().UnixMilli())
		text("X.509")
		number(uint32(len(certificate)))
		out.Write(certificate)
	}
	sum := sha1.New()
	for _, unit := range utf16.Encode([]rune(javaPassword)) {
		binary.Write(sum, binary.BigEndian, unit)
	}
	sum.Write([]byte(javaPepper))
	sum.Write(out.Bytes())
	return sum.Sum(out.Bytes())
}
