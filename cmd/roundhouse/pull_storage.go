package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
)

// Where KServe's storage says a store is: a key of the secret storage-config,
// and over it the parameters of the manifest, each a JSON object of strings.
const (
	storageConfig   = "STORAGE_CONFIG"
	storageOverride = "STORAGE_OVERRIDE_CONFIG"
	// storageScheme begins a URI whose store and bucket they name.
	storageScheme = "storage://"
)

// storageVariables are the variables that S3 is asked by, for each member.
var storageVariables = map[string]string{
	"endpoint_url": "AWS_ENDPOINT_URL_S3", "access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY",
	"region": "AWS_REGION", "anonymous": "awsAnonymousCredential", "ca_bundle": "SSL_CERT_FILE",
}

// fromStorage sets the variables that KServe's storage stands for, and gives the
// URI that it makes of uri. Without a storage that is uri.
func fromStorage(uri string) (string, error) {
	said := map[string]string{}
	for _, name := range []string{storageConfig, storageOverride} {
		var one map[string]string
		if raw := os.Getenv(name); raw != "" && json.Unmarshal([]byte(raw), &one) != nil {
			return "", fmt.Errorf("%s is not a JSON object of strings: mend the key of the secret, or the parameters, that it comes from", name)
		}
		maps.Copy(said, one)
	}
	rest, open := strings.CutPrefix(uri, storageScheme)
	if len(said) == 0 && !open {
		return uri, nil
	}
	kind := said["type"]
	if kind == "" && strings.HasPrefix(uri, "s3://") {
		kind = "s3"
	}
	switch {
	case kind == "" && open:
		return "", errors.New(`storage: no type of store is known: give the key of the secret storage-config a "type", or the manifest parameters with one`)
	case kind != "s3":
		return "", fmt.Errorf("storage: a store of type %q is not read: s3 is", kind)
	case open && said["bucket"] == "":
		return "", errors.New(`storage: no bucket is known: give the key of the secret storage-config a "bucket", or the manifest parameters with one`)
	}
	if open {
		uri = "s3://" + said["bucket"] + "/" + strings.TrimPrefix(rest, "/")
	}
	return uri, setStorage(said)
}

// setStorage sets the variables of an S3 store.
func setStorage(said map[string]string) error {
	if said["access_key_id"] != "" {
		if err := os.Unsetenv("AWS_SESSION_TOKEN"); err != nil { // one of other keys
			return err
		}
	}
	for member, variable := range storageVariables {
		if v := said[member]; v != "" {
			if err := os.Setenv(variable, v); err != nil {
				return fmt.Errorf("storage: %s: %w", member, err)
			}
		}
	}
	return nil
}
