export * from "preact";
export * from "preact/hooks";
export { jsx, jsxs, Fragment } from "preact/jsx-runtime";
