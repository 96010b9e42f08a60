"use strict";
const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("page").textContent);
const content = page.preprocessing;

// Returns undefined for what objects inherit, because a class or column may be called "constructor".
const entry = (object, name) => (Object.hasOwn(object, name) ? object[name] : undefined);

// What the visitor gave is wrong; the message says how.
class InputError extends Error {}
