package volume

import (
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links one path may lead through, as in Linux.
const maxLinks = 40

// Place is where a path leads. Its nodes are held; Close lets go of them.
type Place struct {
	Dir  *Node  // the folder that it is in; nil for the top folder
	Name string // its name there
	Node *Node  // what is there; nil for nothing
}

// Close lets go of the nodes.
func (p *Place) Close() {
	p.Dir.Close()
	p.Node.Close()
}

// Find looks up a path below the top folder, which ".." does not leave and where
// absolute links begin. A link at its end is followed if follow says so; a link
// on the way always is. Folders on the way that are missing are made as makeDirs
// says; nil makes none.
func (t *Tree) Find(path string, follow bool, makeDirs *Meta) (*Place, error) {
	if strings.IndexByte(path, 0) >= 0 || len(path) > 4096 {
		return nil, syscall.EINVAL
	}
	at := &Place{Node: t.root.Hold()}
	left, links := parts(path), 0
	for len(left) > 0 {
		name := left[0]
		left = left[1:]
		if err := at.enter(name); err != nil {
			at.Close()
			return nil, err
		}
		if at.Node == nil && len(left) > 0 && makeDirs != nil {
			made, err := at.Dir.Mkdir(at.Name, *makeDirs)
			if err == syscall.EEXIST { // somebody else was faster
				made, err = at.Dir.Lookup(at.Name)
			}
			if err != nil {
				at.Close()
				return nil, err
			}
			at.Node = made
		}
		if at.Node == nil {
			if len(left) > 0 {
				at.Close()
				return nil, syscall.ENOENT
			}
			return at, nil
		}
		target, isLink, err := at.link()
		if err == nil && isLink && (follow || len(left) > 0) {
			if links++; links > maxLinks {
				err = syscall.ELOOP
			}
			at.leave(strings.HasPrefix(target, "/"), t.root)
			left = append(parts(target), left...)
		}
		if err != nil {
			at.Close()
			return nil, err
		}
	}
	return at, nil
}

func parts(path string) (found []string) {
	for _, part := range strings.Split(path, "/") {
		if part != "" && part != "." {
			found = append(found, part)
		}
	}
	return found
}

// enter goes one name further, from a folder.
func (p *Place) enter(name string) error {
	a, err := p.Node.Attr()
	if err != nil {
		return err
	}
	if !a.IsDir() {
		return syscall.ENOTDIR
	}
	dir := p.Node
	if name == ".." {
		up := dir.Parent()
		p.Dir.Close()
		dir.Close()
		p.Dir, p.Name, p.Node = nil, "", up
		if above, own := up.place(); above != nil {
			p.Dir, p.Name = above.Hold(), own
		}
		return nil
	}
	p.Dir.Close()
	p.Dir, p.Name, p.Node = dir, name, nil
	next, err := dir.Lookup(name)
	if err == syscall.ENOENT {
		return nil
	}
	p.Node = next
	return err
}

func (p *Place) link() (target string, isLink bool, err error) {
	a, err := p.Node.Attr()
	if err != nil || !a.IsLink() {
		return "", false, err
	}
	target, err = p.Node.Target()
	return target, true, err
}

// leave goes back from a link to where its target begins.
func (p *Place) leave(absolute bool, root *Node) {
	p.Node.Close()
	if absolute {
		p.Dir.Close()
		p.Dir, p.Name, p.Node = nil, "", root.Hold()
		return
	}
	dir := p.Dir
	p.Dir, p.Name, p.Node = nil, "", dir
}
