// Protogen generates Go from .proto files, as protoc with protoc-gen-go and
// protoc-gen-go-grpc would, but from this module's pinned versions alone:
// nothing has to be installed, nothing is downloaded that the module cache
// has. The code lands beside each file, as zz_generated.*.pb.go.
//
//	go -C tools run ./protogen ../api/oip/inference.proto …
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/pluginpb"
)

// plugins are the generators, as go tool knows them, and their options.
var plugins = []struct{ name, parameter string }{
	{"protoc-gen-go", "paths=source_relative"},
	{"protoc-gen-go-grpc", "paths=source_relative"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// run generates for files, whose names are relative to the folder above: a
// program that uses a file knows it by that name.
func run(files []string) error {
	names := make([]string, len(files))
	for i, file := range files {
		name, err := filepath.Rel("..", file)
		if err != nil {
			return err
		}
		names[i] = filepath.ToSlash(name)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{".."}}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	compiled, err := compiler.Compile(context.Background(), names...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names}
	for _, file := range compiled {
		// Imports would have to come before it; files here have none.
		request.ProtoFile = append(request.ProtoFile, protoutil.ProtoFromFileDescriptor(file))
	}
	for _, plugin := range plugins {
		request.Parameter = proto.String(plugin.parameter)
		if err := generate(plugin.name, request); err != nil {
			return fmt.Errorf("%s: %w", plugin.name, err)
		}
	}
	return nil
}

// generate runs one plugin and writes what it answers.
func generate(plugin string, request *pluginpb.CodeGeneratorRequest) error {
	input, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "tool", plugin)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output, response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, file := range response.File {
		folder, base := path.Split(file.GetName())
		if !strings.HasSuffix(base, ".pb.go") {
			return fmt.Errorf("wants to write %q, which is no .pb.go", file.GetName())
		}
		if err := os.WriteFile(filepath.Join("..", folder, "zz_generated."+base), []byte(file.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
