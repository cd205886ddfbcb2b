package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// writeSBOMs writes what the programs are made of, as SPDX 2.3 and as
// CycloneDX, both in JSON.
func (r *release) writeSBOMs(context.Context) error {
	return errors.Join(r.writeSPDX(), r.writeCycloneDX())
}

// purl returns the package URL of a module.
func (m *module) purl() string {
	if m.path == standardLibrary {
		return "pkg:golang/std@" + strings.TrimPrefix(m.version, "go")
	}
	return "pkg:golang/" + m.path + "@" + m.version
}

// expression returns the module's licences as an SPDX expression.
func (m *module) expression() string { return strings.Join(m.licences, " AND ") }

func (r *release) writeSPDX() error {
	main := spdx.Package{
		PackageName: "roundhouse", PackageSPDXIdentifier: "roundhouse", PackageVersion: r.version.semver,
		PackageDownloadLocation: r.url, PackageLicenseConcluded: "Apache-2.0", PackageLicenseDeclared: "Apache-2.0",
		PackageCopyrightText: "Copyright 2026 The Roundhouse Authors",
	}
	doc := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      "roundhouse-" + r.version.semver,
		DocumentNamespace: "https://roundhouse.dev/spdx/" + r.version.semver + "/" + r.version.commit,
		CreationInfo: &spdx.CreationInfo{
			Created:  r.version.time.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "roundhouse-release"}},
		},
		Packages:      []*spdx.Package{&main},
		Relationships: []*spdx.Relationship{{RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", "roundhouse"), Relationship: common.TypeRelationshipDescribe}},
	}
	for i, m := range r.modules {
		id := common.ElementID(fmt.Sprintf("module-%d", i))
		doc.Packages = append(doc.Packages, &spdx.Package{
			PackageName: m.path, PackageSPDXIdentifier: id, PackageVersion: m.version, PackageDownloadLocation: "NOASSERTION",
			PackageLicenseConcluded: "NOASSERTION", PackageLicenseDeclared: m.expression(), PackageCopyrightText: "NOASSERTION",
			PackageExternalReferences: []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: m.purl()}},
		})
		doc.Relationships = append(doc.Relationships, &spdx.Relationship{
			RefA: common.MakeDocElementID("", "roundhouse"), RefB: common.MakeDocElementID("", string(id)), Relationship: common.TypeRelationshipDependsOn,
		})
	}
	out, err := os.Create(r.path("roundhouse_" + r.version.semver + ".spdx.json"))
	if err != nil {
		return err
	}
	return errors.Join(spdxjson.Write(doc, out, spdxjson.Indent("  ")), out.Close())
}

func (r *release) writeCycloneDX() error {
	main := cyclonedx.Component{
		BOMRef: "roundhouse", Type: cyclonedx.ComponentTypeApplication, Name: "roundhouse", Version: r.version.semver,
		Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}
	var components []cyclonedx.Component
	var refs []string
	for _, m := range r.modules {
		licences := cyclonedx.Licenses{{Expression: m.expression()}}
		if len(m.licences) == 1 {
			licences = cyclonedx.Licenses{{License: &cyclonedx.License{ID: m.licences[0]}}}
		}
		components = append(components, cyclonedx.Component{
			BOMRef: m.purl(), Type: cyclonedx.ComponentTypeLibrary, Name: m.path, Version: m.version, PackageURL: m.purl(), Licenses: &licences,
		})
		refs = append(refs, m.purl())
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = serial(r.version)
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.version.time.Format(time.RFC3339), Component: &main}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: "roundhouse", Dependencies: &refs}}
	out, err := os.Create(r.path("roundhouse_" + r.version.semver + ".cdx.json"))
	if err != nil {
		return err
	}
	return errors.Join(cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom), out.Close())
}

// serial returns a UUID that depends on the commit and the version alone.
func serial(v version) string {
	sum := sha256.Sum256([]byte(v.commit + " " + v.semver))
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80 // RFC 9562, version 8
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
