"use strict";
const byId = (id) => document.getElementById(id);
const page = JSON.parse(byId("page").textContent);
const content = page.preprocessing;

// What the visitor gave is wrong; the message says how.
class InputError extends Error {}
